"""What commands print: JSON for programs, tables and lines for people.

Names, arguments and messages come from models and from the network. What a terminal would not show as it is (changes
of direction, invisible and control characters, ends of lines) is spelt out for people. JSON has it as it is for
programs, and as JSON's own escapes on a terminal.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape as markup
from rich.table import Table

from refold.core.planning.windows import DAY_MS
from refold.runtime.text import visible
from refold.views.model import Data as Data
from refold.views.model import json_text as json_text
from refold.views.model import plain as plain

STYLES = {
    "completed": "green",
    "noted": "green",
    "running": "cyan",
    "pending": "cyan",
    "proposed": "cyan",
    "suspended": "yellow",
    "stalled": "bold red",
    "paused": "bold yellow",
    "backoff": "yellow",
    "sleeping": "yellow",
    "waiting": "yellow",
    "expired": "red",
    "approval": "bold yellow",
    "doubt": "bold magenta",
    "held": "bold magenta",
    "unknown": "magenta",
    "failed": "red",
    "cancelled": "red",
}


_OF_A_TOOLSET = re.compile(r"(?P<agent>.+?)__[a-z_]+__(?P<toolset>.+)\.call_tool:(?P<tool>.+)")
PIPED = 100_000
"""The width of tables where no terminal sets one: no cell is that long, so that a line of a pipe is a row."""


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console on the stream as it is now. Nothing is broken, coloured or turned into pictures by guesswork."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True, emoji=False, width=width)


def say(text: str = "") -> None:
    """One line for people, with rich markup."""
    console().print(text)


def note(text: str) -> None:
    """A line of plain text on stderr, beside what was asked for."""
    console(stderr=True).print(f"[dim]{escape(text)}[/]")


def warn(text: str) -> None:
    """A warning in plain text on stderr."""
    console(stderr=True).print(f"[yellow]warning: {escape(text)}[/]")


def emit(value: Any) -> None:
    """One JSON value on a line of stdout."""
    seen = sys.stdout.isatty()
    text = json.dumps(plain(value), ensure_ascii=seen)
    sys.stdout.write((text.replace("\x7f", "\\u007f") if seen else text) + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """A table; every cell may hold rich markup. Nothing is cut: what does not fit a terminal is folded."""
    out = console(width=None if sys.stdout.isatty() else PIPED)
    cells = list(rows)
    named = max((len(row[0]) for row in cells), default=0)  # others fold first, unless there is no room for them
    drawn = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    for number, column in enumerate(columns):
        drawn.add_column(column, overflow="fold", no_wrap=number == 0 and 2 * named < out.width)
    for row in cells:
        drawn.add_row(*row)
    out.print(drawn)


def print_rows(rows: Sequence[Data], columns: Sequence[str], nothing: str) -> None:
    """Rows of plain values as a table, or the words for none."""
    if rows:
        print_table(columns, [[escape(_cell(row[name])) for name in columns] for row in rows])
    else:
        say(nothing)


def _cell(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def styled(status: str) -> str:
    """A status in its colour."""
    return f"[{STYLES.get(status, 'white')}]{status}[/]"


def moment(at_ms: int) -> str:
    """A time in UTC, as --since takes it, or a dash."""
    return _at(at_ms, lambda at: f"{at.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z") if at_ms else "-"


def clock(at_ms: int, now_ms: int) -> str:
    """A time in UTC for a list: of the last day the time alone, else the day with its minute."""
    form = "{:%H:%M:%S}" if abs(now_ms - at_ms) < DAY_MS else "{:%Y-%m-%d %H:%M}"
    return _at(at_ms, form.format) if at_ms else "-"


def in_utc(at_ms: int) -> str:
    """A time in UTC, to the second, for people who decide by it."""
    return _at(at_ms, "{:%Y-%m-%d %H:%M:%S} UTC".format)


def _at(at_ms: int, show: Callable[[datetime], str]) -> str:
    """A time of the log, of which anybody may have written anything."""
    try:
        return show(datetime.fromtimestamp(at_ms / 1000, UTC))
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def duration(ms: int) -> str:
    """A duration in two units at most: `81 ms`, `3.2 s`, `3 m 12 s`, `2 h 5 m`, `3 d 4 h`."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    for unit, size, part, below in (("d", DAY_MS, "h", 3_600_000), ("h", 3_600_000, "m", 60_000)):
        if ms >= size:
            return f"{ms // size} {unit} {ms % size // below} {part}"
    return f"{ms // 60_000} m {ms % 60_000 // 1000} s"


def escape(text: str, limit: int = 0) -> str:
    """Text from outside, visible and safe in markup and, with a limit, shortened."""
    return markup(visible(text if not limit or len(text) <= limit else text[: limit - 1] + "…"))


def tool_name(name: str) -> str:
    """A tool as people call it: `buyer.buy` for `buyer__function_toolset__<agent>.call_tool:buy` of pydantic-ai."""
    if found := _OF_A_TOOLSET.fullmatch(name):
        toolset = "" if found["toolset"] == "<agent>" else f"{found['toolset']}."
        return f"{found['agent']}.{toolset}{found['tool']}"
    return name


def counted(count: int, what: str) -> str:
    """`1 rule`, `2 rules`."""
    return f"{count} {what}{'s' * (count != 1)}"


def progress(*, after_s: float = 2.0) -> Callable[[str, int, int], None]:
    """Shows the steps of something slow on stderr, a line for each tenth with the seconds since its first.

    Nothing is shown before `after_s`: most commands are over by then.
    """
    told: dict[str, int] = {}
    begun: dict[str, float] = {}

    def show(what: str, done: int, total: int) -> None:
        tenth = done * 10 // max(1, total)
        now = time.monotonic()
        if not done:  # a second pass counts its own seconds
            begun[what] = now
            told.pop(what, None)
        seconds = now - begun.setdefault(what, now)
        if seconds >= after_s and told.get(what) != tenth:
            told[what] = tenth
            note(f"{what}: {done}/{total}" + (f" after {seconds:.0f} s" if done else ""))

    return show
