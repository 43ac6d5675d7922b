"""Output of commands: JSON for programs; tables and lines for people, with hidden characters spelt out, since names,
arguments and messages come from models and the network."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape as markup
from rich.table import Table

from refold.client.reading.model import Data as Data
from refold.client.reading.model import json_text as json_text
from refold.client.reading.model import plain as plain
from refold.client.reading.words import duration as duration
from refold.client.reading.words import in_utc as in_utc
from refold.client.reading.words import moment as moment
from refold.client.reading.words import tool_name as tool_name
from refold.client.reading.words import with_ellipsis
from refold.engine.runtime.text import visible

_STATUSES = {
    "green": "completed noted",
    "cyan": "running pending proposed",
    "yellow": "suspended backoff sleeping waiting",
    "bold yellow": "paused approval",
    "bold red": "stalled",
    "red": "expired failed cancelled",
    "bold magenta": "doubt held",
    "magenta": "unknown",
}
STYLES = {status: style for style, statuses in _STATUSES.items() for status in statuses.split()}

# Width of tables without a terminal: above every cell, so that each row is one line.
PIPED = 100_000


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console on the current stdout or stderr that neither wraps nor colours text by itself."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True, emoji=False, width=width)


def say(text: str = "") -> None:
    console().print(text)


def note(text: str) -> None:
    console(stderr=True).print(f"[dim]{escape(text)}[/]")


def warn(text: str) -> None:
    console(stderr=True).print(f"[yellow]warning: {escape(text)}[/]")


def emit(value: Any) -> None:
    # On a terminal all hidden characters are spelt out; of these, JSON escapes every one but DEL.
    terminal = sys.stdout.isatty()
    text = json.dumps(plain(value), ensure_ascii=terminal)
    sys.stdout.write((text.replace("\x7f", "\\u007f") if terminal else text) + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print cells, which may hold rich markup; wide ones are folded, never cut."""
    out = console(width=None if sys.stdout.isatty() else PIPED)
    cells = list(rows)
    named = max((len(row[0]) for row in cells), default=0)  # others fold first, unless there is no room for them
    drawn = Table(box=SIMPLE_HEAD)
    for number, column in enumerate(columns):
        drawn.add_column(column, overflow="fold", no_wrap=number == 0 and 2 * named < out.width)
    for row in cells:
        drawn.add_row(*row)
    out.print(drawn)


def print_rows(rows: Sequence[Data], columns: Sequence[str], nothing: str) -> None:
    if rows:
        print_table(columns, [[escape(_cell(row[name])) for name in columns] for row in rows])
    else:
        say(nothing)


def _cell(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def styled(status: str) -> str:
    return f"[{STYLES.get(status, 'white')}]{status}[/]"


def escape(text: str, limit: int = 0) -> str:
    """Escape outside text for markup, with hidden characters spelt out; `limit` shortens it."""
    return markup(visible(with_ellipsis(text, limit)))


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def progress(*, after_s: float = 2.0) -> Callable[[str, int, int], None]:
    """Printer of progress on stderr, a line per tenth, none within `after_s` of the first step."""
    tenths: dict[str, int] = {}
    begun: dict[str, float] = {}

    def show(activity: str, done: int, total: int) -> None:
        tenth = done * 10 // max(1, total)
        now = time.monotonic()
        if not done:  # a second pass counts its own seconds
            begun[activity] = now
            tenths.pop(activity, None)
        seconds = now - begun.setdefault(activity, now)
        if seconds >= after_s and tenths.get(activity) != tenth:
            tenths[activity] = tenth
            note(f"{activity}: {done}/{total}" + (f" after {seconds:.0f} s" if done else ""))

    return show
