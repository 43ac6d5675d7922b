"""Pages of the site out of the files that GitHub shows: links that lead out of docs/, lists, and the navigation.

Each page is there as Markdown, too, beside its HTML. `python docs/site/pages.py` writes docs/llms.txt, the list of them
for programs.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
SKILL = "skills/refold/SKILL.md"
BESIDE = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    SKILL: "skill.md",
}
"""Files beside docs/ that are pages, too."""
LINK = re.compile(r"(\]\(|(?:src|srcset|href)=\")(?!https?:|mailto:|#)([^)\s\"#]+)(#[^)\s\"]*)?")
TO_FOLDER = re.compile(r"\[([^\]]+)\]\(\x00[^)]*\)")
FENCE = re.compile(r"^(```.*?^```[^\S\n]*$)", re.MULTILINE | re.DOTALL)
LIST = re.compile(r"^((?![-*>|#\s]|\d+\. ).*\S.*)\n(?=[-*] |\d+\. )", re.MULTILINE)
TITLES = {"adr": "Decisions"}
OPENING = "After this page you "
HEAD = """\
# Refold

> Durable AI agents as event-sourced services on Kafka, in Python: agents, tools, approvals and schedules that survive
> any crash, because a run is a log of events.

With the package installed, `refold docs guides/schedules` prints a page, `refold COMMAND --help` explains a command.
"""


def place(path: str) -> str:
    """The page of a file of the repository, or of the README of a folder; empty where there is none."""
    if (ROOT / path).is_dir():
        return place(f"{path}/README.md") if (ROOT / path / "README.md").is_file() else ""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in BESIDE:
        return BESIDE[path]
    return f"source/{path}.md" if (ROOT / path).is_file() else ""


def rewritten(markdown: str, path: str) -> str:
    """The Markdown of a file with links as the site has them, and with lists as its dialect wants them."""

    def moved(found: re.Match[str]) -> str:
        begin, target, anchor = found[1], found[2], found[3] or ""
        there = normpath(f"{Path(path).parent}/{target}")
        if not (ROOT / there).exists() and not there.startswith("docs/reference/"):
            return found[0]  # a broken link, which the build refuses
        page = place(there)
        return f"{begin}{relpath(page, Path(place(path)).parent) if page else chr(0)}{anchor if page else ''}"

    parts = FENCE.split(markdown)
    for index in range(0, len(parts), 2):
        parts[index] = LIST.sub(r"\1\n\n", TO_FOLDER.sub(r"\1", LINK.sub(moved, parts[index])))
    return "".join(parts)


def on_files(files: Any, config: Any) -> Any:
    """Add the files beside docs/, and sources that a page links to."""
    pages = {name: (ROOT / name).read_text() for name in BESIDE}
    pages |= {f"docs/{file.src_uri}": Path(file.abs_src_path).read_text() for file in files.documentation_pages()}
    for name, text in pages.items():
        for found in LINK.finditer(text):
            there = normpath(f"{Path(name).parent}/{found[2]}")
            page = place(there) if (ROOT / there).is_file() else ""
            if page.startswith("source/") and page not in files.src_uris:
                lines = (ROOT / there).read_text()
                content = (
                    f"---\nsearch: {{exclude: true}}\n---\n\n# {there}\n\n````{Path(there).suffix[1:]}\n{lines}````\n"
                )
                files.append(File.generated(config, page, content=content))
    for name, page in BESIDE.items():
        files.append(File.generated(config, page, content=pages[name]))
    config.nav = navigation(files)
    return files


def navigation(files: Any) -> list[Any]:
    """The sections of docs/index.md with the pages that each links to, in its order, then other pages by folder."""
    left = {file.src_uri for file in files.documentation_pages()} - {"index.md"}
    nav: list[Any] = [{"Refold": "index.md"}]
    for part in re.split(r"^## ", (ROOT / "docs/index.md").read_text(), flags=re.MULTILINE)[1:]:
        linked = dict.fromkeys(place(normpath(f"docs/{found[2]}")) for found in LINK.finditer(part))
        nav.append({part.partition("\n")[0].removesuffix(" by task"): [page for page in linked if page in left]})
        left -= linked.keys()
    last = next(iter(nav[-1].values()))
    last += sorted(page for page in left if "/" not in page)
    for folder in sorted({page.partition("/")[0] for page in left if "/" in page}):
        pages = sorted(page for page in left if page.startswith(f"{folder}/"))
        if folder == "source":
            for page in pages:
                files.get_file_from_path(page).inclusion = InclusionLevel.NOT_IN_NAV
        else:
            last.append({TITLES.get(folder, folder.title()): pages})
    return nav


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page, and write it beside its HTML."""
    uri = page.file.src_uri
    path = next((name for name, beside in BESIDE.items() if beside == uri), f"docs/{uri}")
    generated = uri.startswith(("source/", "reference/"))
    whole = page.file.content_string
    target = Path(config.site_dir) / uri
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(whole if generated else rewritten(whole, path))
    return markdown if generated else rewritten(markdown, path)


def contents() -> str:
    """The text of docs/llms.txt: the pages of each section of docs/index.md, in its order, then all others."""
    pages = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
    left = {place(path): (ROOT / path).read_text() for path in (SKILL, *pages)}
    parts = [HEAD]
    for part in re.split(r"^## ", left["index.md"], flags=re.MULTILINE)[1:]:
        linked = dict.fromkeys(place(normpath(f"docs/{found[2]}")) for found in LINK.finditer(part))
        if rows := [row(page, left.pop(page)) for page in linked if page in left]:
            parts.append("\n".join([f"## {part.partition(chr(10))[0]}\n", *rows, ""]))
    return "\n".join([*parts, "## Optional\n", *(row(page, text) for page, text in left.items()), ""])


def row(page: str, text: str) -> str:
    """A page as docs/llms.txt lists it."""
    title, opening = f"\n{text}".partition("\n# ")[2].split("\n\n")[:2]
    if not opening.startswith(OPENING):
        return f"- [{title}]({page})"
    plain = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", " ".join(opening.removeprefix(OPENING).removeprefix("can ").split()))
    return f"- [{title}]({page}): {re.split(r'[.:](?: |$)', plain)[0]}"


if __name__ == "__main__":
    (ROOT / "docs/llms.txt").write_text(contents())
