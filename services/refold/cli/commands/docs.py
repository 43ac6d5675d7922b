"""`refold docs`: the pages of the documentation as Markdown, and the skill for coding agents."""

import re
import sys
from typing import Annotated

from refold.cli.platform import Printer
from refold.core.errors import NotFoundError
from refold.core.wire.resources import resource

_ROW = re.compile(r"^- \[(?P<title>.+)\]\((?P<page>.+)\.md\)(?:: (?P<content>.+))?$", re.MULTILINE)
"""A page in `llms.txt`."""


def print_docs(
    page: Annotated[str, "Page to print: guides/schedules, or its last part.  \\[default: list all]"] = "",
    *,
    printer: Printer,
) -> None:
    """List the pages of the documentation, or print one as Markdown.

    `refold docs skill` prints instructions for coding agents; SKILL.md in a folder of theirs is the place for it.
    """
    text = resource("docs", "llms.txt").read_text()
    rows = [match.groupdict() for match in _ROW.finditer(text)]
    if not page:
        printer.print(rows, lambda: sys.stdout.write(text))
        return
    wanted = page.lower().removesuffix(".md")
    names = [row["page"] for row in rows if wanted in (row["page"].lower(), row["page"].lower().rpartition("/")[2])]
    if not names:
        raise NotFoundError(f"the documentation has no page {page}", hint="`refold docs` lists all")
    path = resource("skills", "refold/SKILL.md") if names[0] == "skill" else resource("docs", f"{names[0]}.md")
    content = path.read_text()
    printer.print({"page": names[0], "text": content}, lambda: sys.stdout.write(content))
