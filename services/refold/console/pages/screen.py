"""Parts of screens: tables, forms, texts and choices. Texts are raw: the template escapes them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from refold.console.pages.wording import TextDiff

SCREEN = "screen.html"

BAR_HEIGHT = 18
"""Height of the tallest bar."""
BAR_PITCH = 6
MOST_FILTERED = 500
"""Characters of a filter at most."""


class DayBar(NamedTuple):
    """A bar in a row of bars; `failed` is the lower part."""

    x: int
    height: int
    failed: int


class Cell(NamedTuple):
    """A cell of a table. `kind`: text, `num`, `usd`, `code`, `status`, `at`, `took`; `note` is small print. **Units**:
    `usd` in billionths of a dollar, `at` and `took` in milliseconds."""

    value: Any
    kind: str = "text"
    href: str = ""
    note: str = ""
    bars: Sequence[DayBar] = ()
    more: Sequence["Cell"] = ()


class Grid(NamedTuple):
    """A table. Without rows it shows `empty`, a description of the rows, and the `command` that creates some."""

    id: str
    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    empty: str
    command: str = ""
    next: str = ""
    note: str = ""
    part: str = "grid"


class AskField(NamedTuple):
    """A field of a form. `kind`: `text`, `area`, `pick` (one of `choices`) or `hidden`."""

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    choices: Sequence[str] = ()


class AskForm(NamedTuple):
    """A form, sent to `action`; `says` is its explanation, `back` the page of a link that leaves it."""

    id: str
    title: str
    action: str
    fields: Sequence[AskField]
    button: str
    says: str = ""
    back: str = ""
    part: str = "form"


class Passage(NamedTuple):
    """A text of several lines under a title, or a value of the log as JSON."""

    id: str
    title: str
    text: str
    note: str = ""
    href: str = ""
    part: str = "passage"


class Choices(NamedTuple):
    """Links with a mark at the current one: word, address, current."""

    id: str
    label: str
    links: Sequence[tuple[str, str, bool]]
    part: str = "choices"


class TextChange(NamedTuple):
    id: str
    title: str
    change: TextDiff
    part: str = "change"


def grid_of(
    name: str, caption: str, rows: Iterable[Any], columns: str, cells: Mapping[str, Callable[[Any], Cell]], **more: str
) -> Grid:
    """Return a table of read models. `columns` are heads with `;` between them: each one of `cells`, or followed by a
    kind and an attribute: `Steps num steps`."""
    heads = [column.strip() for column in columns.split(";")]
    plain = [head if head in cells else head.rsplit(" ", 2) for head in heads]

    def cell(row: Any, how: str | list[str]) -> Cell:
        return cells[how](row) if isinstance(how, str) else Cell(getattr(row, how[2]), how[1])

    grid_heads = [how if isinstance(how, str) else how[0] for how in plain]
    grid_rows = [[cell(row, how) for how in plain] for row in rows]
    return Grid(name, caption, grid_heads, grid_rows, **{"empty": "", **more})


def url(path: str, **parameters: object) -> str:
    """Return an address with filters in its query; empty if a text is too long."""
    used = {name: value for name, value in parameters.items() if value not in ("", 0, None)}
    if any(len(str(value)) > MOST_FILTERED for name, value in used.items() if name != "cursor"):
        return ""
    return f"{path}?{urlencode(used, doseq=True, errors='replace')}" if used else path


def bars_of(days: Iterable[tuple[int, int]]) -> list[DayBar]:
    shown = list(days)
    most = max((whole for whole, _ in shown), default=0) or 1
    return [
        DayBar(n * BAR_PITCH, max(1, -(-whole * BAR_HEIGHT // most)), -(-min(bad, whole) * BAR_HEIGHT // most))
        for n, (whole, bad) in enumerate(shown)
    ]
