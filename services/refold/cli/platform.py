"""Shared parts of many commands: the connection to a platform, and printing of results."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer

from refold.cli import options, output
from refold.cli.errors import fail
from refold.client.addresses import addresses
from refold.client.platform import Platform
from refold.core.approval.requirement import duration_ms
from refold.core.errors import MalformedError, UsageError
from refold.core.events import Spendable
from refold.core.run.metering import dollars, nano_usd
from refold.core.wire import canonical
from refold.operations.runs import Runs
from refold.runtime.clock import clock_ms
from refold.views.history import Run


@dataclass(frozen=True)
class Printer:
    """The option of what tells something without a platform."""

    json_: options.JsonOption = False

    def tell(self, value: Any, words: str | Callable[[], object], *, ok: bool = True) -> None:
        """Tells what was found, as JSON or in words: lines of markup, or what prints them. If not `ok`, it failed."""
        if self.json_:
            output.emit(value)
        elif isinstance(words, str):
            output.say(words)
        else:
            words()
        if not ok:
            fail()

    def tell_rows(self, rows: Sequence[Any], columns: str, nothing: str, *, cells: Iterable[Any] | None = None) -> None:
        """Tells rows, for people as a table of some of their columns, or of `cells`, which they can read better."""
        shown = [output.plain(each) for each in (rows if cells is None else cells)]
        self.tell(rows, lambda: output.print_rows(shown, columns.split(), nothing))


@dataclass(frozen=True)
class Shell(Printer):
    """The options of most commands: where the platform is, and how to tell what was found."""

    kafka: options.KafkaOption = ""
    data: options.DataOption = ""

    @cached_property
    def platform(self) -> Platform:
        return connect(kafka=self.kafka, data=self.data)

    @property
    def runs(self) -> Runs:
        return self.platform.runs

    def all_runs(self) -> Iterator[Run]:
        """Every run in its log, a part at a time, and how far that is on stderr."""
        told = output.progress()
        for number in range(self.runs.partitions):
            told("read the run log", number, self.runs.partitions)
            yield from self.runs.all(number)


@dataclass(frozen=True)
class Listing(Shell):
    """The options of a list that grows with time."""

    limit: Annotated[options.Positive, "Show only the newest N."] = 50


def connect(*, kafka: str = "", redis: str = "", data: str = "") -> Platform:
    quiet()
    where = addresses(kafka=kafka, redis=redis, data=data)
    return Platform(where)


def quiet() -> None:
    """Keeps what clients log off stdout, where the command's own words go; the command tells its errors itself."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def agree(question: str, otherwise: str, *, yes: bool) -> None:
    """Asks whether it shall be done, unless that was said before. Ends the command, with a word, if it shall not."""
    if not yes and not typer.confirm(question):
        output.say(otherwise)
        fail()


def pair(text: str, problem: str, *, hint: str) -> tuple[str, str]:
    """The two sides of `NAME=VALUE`. **Raises** UsageError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} {problem}", hint=hint)
    return name, value


def labels_of(given: list[str] | None) -> tuple[tuple[str, str], ...]:
    """The labels of an option. **Raises** UsageError."""
    return tuple(pair(each, "is not a label", hint="write --label team=payments") for each in given or [])


def smaller_budget(text: str) -> Spendable | None:
    """`usd=2.50,tokens=10000,calls=20`, some of it, or nothing. **Raises** UsageError."""
    said: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        if name == "usd":
            said["nano_usd"] = nano_usd(dollars(number, "--budget usd="))
        elif name in ("tokens", "calls") and number.isdecimal():
            said[name] = int(number)
        else:
            raise UsageError(f"--budget {part}", hint="write usd=2.50,tokens=10000,calls=20, or some of that")
    return Spendable(**said) if said else None  # type: ignore[arg-type]


def source(text: str) -> str:
    """A value of the command line as it is, from a file after `@`, or from stdin for `-`. **Raises** UsageError."""
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "") or "it is not UTF-8"
        hint = "name a file that exists after @, or write - for stdin, or the value itself"
        raise UsageError(f"cannot read {text[1:]}: {reason}", hint=hint) from None


@contextmanager
def writing(file: str) -> Iterator[Path]:
    """The path of a file that the user has named, for a write. **Raises** UsageError where that cannot be."""
    try:
        yield Path(file)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}", hint="name a file that can be written") from None


def json_value(text: str, option: str) -> Any:
    """The JSON of an option or argument, as `source` reads it. **Raises** UsageError, which names the option."""
    given = source(text)
    try:
        return canonical.parse(given)
    except MalformedError as error:
        raise UsageError(f"{option}: {error.message}", hint=_AS_JSON) from None


_AS_JSON = """write JSON in single quotes, such as '{"name": "Ada"}'; a text has double quotes inside them: '"Ada"'"""


def time_ms(text: str, option: str) -> int:
    """A time with its zone. **Raises** UsageError, which names the option."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UsageError(f"{option} {text!r} is not a time with a zone", hint="write 2030-01-31T12:00Z")
    return int(moment.timestamp() * 1000)


def until_ms(text: str, option: str) -> int:
    """Until when, as an option says it: a time with its zone, how long from now, or 0: never. **Raises** UsageError."""
    if not text:
        return 0
    return time_ms(text, option) if "-" in text else clock_ms() + duration_ms(option, text)


def since_ms(text: str, option: str = "--since") -> int:
    """Time of an option: a time with its zone, how long ago that is, or 0 for nothing. **Raises** UsageError."""
    if not text:
        return 0
    return time_ms(text, option) if "-" in text else clock_ms() - duration_ms(option, text)
