"""What commands print: JSON for programs, tables and lines for people."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {
    "completed": "green",
    "noted": "green",
    "running": "cyan",
    "pending": "cyan",
    "proposed": "cyan",
    "suspended": "yellow",
    "backoff": "yellow",
    "sleeping": "yellow",
    "approval": "bold yellow",
    "doubt": "bold magenta",
    "unknown": "magenta",
    "failed": "red",
    "cancelled": "red",
}


def console(*, stderr: bool = False) -> Console:
    """A console on the stream as it is now. Ids and addresses are never broken or coloured by guesswork."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def say(text: str = "") -> None:
    """One line for people, with rich markup."""
    console().print(text)


def emit(value: Any) -> None:
    """One JSON value on a line of stdout."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """A table; every cell may hold rich markup. What the first column names is never cut."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    drawn = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    for number, column in enumerate(columns):
        drawn.add_column(column, no_wrap=number == 0, overflow="fold" if number == 0 else "ellipsis")
    for row in rows:
        drawn.add_row(*row)
    console().print(drawn)


def plain(value: Any) -> Any:
    """Dataclasses, named tuples and bytes as JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple | set | frozenset) else value


def styled(status: str) -> str:
    """A status in its colour."""
    return f"[{STYLES.get(status, 'white')}]{status}[/]"


def moment(at_ms: int) -> str:
    """A time of day in UTC, or a dash."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%H:%M:%S.%f}"[:-3] if at_ms else "-"


def escape(text: str, limit: int = 0) -> str:
    """Text from outside, safe in markup and, with a limit, shortened."""
    from rich.markup import escape as markup

    return markup(text if not limit or len(text) <= limit else text[: limit - 1] + "…")


def json_text(text: str) -> Any:
    """A JSON text from a record as data; text that is none stays text."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def progress() -> Callable[[str, int, int], None]:
    """Shows the steps of something slow on stderr, a line for each tenth."""
    told: dict[str, int] = {}

    def show(what: str, done: int, total: int) -> None:
        tenth = done * 10 // max(1, total)
        if told.get(what) != tenth:
            told[what] = tenth
            console(stderr=True).print(f"[dim]{escape(what)}: {done}/{total}[/]")

    return show
