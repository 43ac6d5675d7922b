"""How long the pages are, how they open, and words that hide a name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

README, INDEX = ROOT / "README.md", ROOT / "docs" / "index.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OPENING = [page for page in PAGES if not re.match(r"\d", page.name)]
"""Pages for readers; decisions have parts of their own."""

MOST_WORDS = 46_700
"""Of README, CHANGELOG and docs, without the bars of tables. A page that grows has another one shrink."""

_HIDES_A_NAME = re.compile(r"(?i)\b(nobody|somebody|whoever|of which)\b")


def words(path: Path) -> int:
    return sum(any(map(str.isalnum, word)) for word in path.read_text().split())


def test_the_readme_is_read_to_its_end() -> None:
    assert len(README.read_text().splitlines()) <= 200
    assert words(README) <= 1_300


def test_the_docs_are_short_enough_to_finish() -> None:
    assert sum(map(words, (README, ROOT / "CHANGELOG.md", *PAGES))) <= MOST_WORDS


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.name)
def test_a_page_names_who_does_it(page: Path) -> None:
    found = _HIDES_A_NAME.findall(page.read_text())

    assert len(found) <= max(1, words(page) // 500), (
        "at most 2 in 1,000 words: name the person, the service or the thing"
    )


@pytest.mark.parametrize("page", OPENING, ids=lambda page: page.name)
def test_a_page_opens_with_what_its_reader_can_do_after_it(page: Path) -> None:
    title, opening = page.read_text().split("\n\n")[:2]

    assert title.startswith("# ")
    assert opening.startswith("After this page you "), "say what the reader knows or can do then"


def test_the_index_leads_to_every_page() -> None:
    linked = {(INDEX.parent / target).resolve() for target in re.findall(r"\]\(([^)#]+)", INDEX.read_text())}
    records = (ROOT / "docs" / "adr" / "README.md").read_text()

    assert [str(page) for page in OPENING if page not in {*linked, INDEX}] == []
    assert [page.name for page in PAGES if page not in OPENING and f"({page.name})" not in records] == []
