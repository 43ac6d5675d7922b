"""Shared parts of many commands: connection, option parsing, printed results."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer

from refold.cli import options, output
from refold.cli.errors import fail
from refold.client.operations.runs import Runs
from refold.client.platform import Platform
from refold.client.reading.history import Run
from refold.core.approval.policy import duration_ms
from refold.core.errors import MalformedError, UsageError
from refold.core.events import Spendable
from refold.core.run.account import dollars, nano_usd
from refold.core.wire import canonical
from refold.engine.runtime.addresses import addresses
from refold.engine.runtime.clock import clock_ms


@dataclass(frozen=True)
class Printer:
    json_: options.JsonOption = False

    def print(self, value: Any, text: str | Callable[[], object], *, ok: bool = True) -> None:
        """Print a result, as JSON or as text, given as markup or a function. Exit with 1 unless `ok`."""
        if self.json_:
            output.emit(value)
        elif isinstance(text, str):
            output.say(text)
        else:
            text()
        if not ok:
            fail()

    def refuse(self, names: str, reason: str) -> None:
        """Check that none of these options is given. **Raises** UsageError for the first that is."""
        for option in fields(self):
            # Typer may give an empty list for None.
            if option.name in names.split() and (getattr(self, option.name) or None) != (option.default or None):
                raise UsageError(f"--{option.name.strip('_').replace('_', '-')} {reason}", hint="leave it out")

    def print_rows(self, rows: Sequence[Any], columns: str, empty: str, *, cells: Iterable[Any] | None = None) -> None:
        """Print rows, as JSON or as a table of `columns`, of `cells` if given."""
        shown = [output.plain(row) for row in (rows if cells is None else cells)]
        self.print(rows, lambda: output.print_rows(shown, columns.split(), empty))


@dataclass(frozen=True)
class Shell(Printer):
    """Options of most commands: the platform's addresses and the output format."""

    kafka: options.KafkaOption = ""
    data: options.DataOption = ""

    @cached_property
    def platform(self) -> Platform:
        return connect(kafka=self.kafka, data=self.data)

    @property
    def runs(self) -> Runs:
        return self.platform.runs

    def all_runs(self) -> Iterator[Run]:
        progress = output.progress()
        for number in range(self.runs.partitions):
            progress("read the run log", number, self.runs.partitions)
            yield from self.runs.all(number)


@dataclass(frozen=True)
class Listing(Shell):
    limit: Annotated[options.Positive, "Show only the newest N."] = 50


def connect(*, kafka: str = "", redis: str = "", data: str = "") -> Platform:
    quiet()
    return Platform(addresses(kafka=kafka, redis=redis, data=data))


def quiet() -> None:
    """Keep log lines of clients off stdout, where results go."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def agree(question: str, otherwise: str, *, yes: bool) -> None:
    """Ask for confirmation unless `yes`; exit with 1 if it is refused."""
    if not yes and not typer.confirm(question):
        output.say(otherwise)
        fail()


def pair(text: str, problem: str, *, hint: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} {problem}", hint=hint)
    return name, value


def labels_of(texts: list[str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(pair(text, "is not a label", hint="write --label team=payments") for text in texts or [])


def smaller_budget(text: str) -> Spendable | None:
    """Parse `usd=2.50,tokens=10000,calls=20` or a part of it. **Raises** UsageError."""
    limits: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        if name == "usd":
            limits["nano_usd"] = nano_usd(dollars(number, "--budget usd="))
        elif name in ("tokens", "calls") and number.isdecimal():
            limits[name] = int(number)
        else:
            raise UsageError(f"--budget {part}", hint="write usd=2.50,tokens=10000,calls=20, or some of that")
    return Spendable(**limits) if limits else None  # type: ignore[arg-type]


def source(text: str) -> str:
    """An argument's text, the file after `@`, or stdin for `-`. **Raises** UsageError."""
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
    """Path of a file to write. **Raises** UsageError if the block cannot."""
    try:
        yield Path(file)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}", hint="name a file that can be written") from None


def json_value(text: str, option: str) -> Any:
    """Parse JSON as read by `source`. **Raises** UsageError."""
    try:
        return canonical.parse(source(text))
    except MalformedError as error:
        raise UsageError(f"{option}: {error.message}", hint=_AS_JSON) from None


_AS_JSON = """write JSON in single quotes, such as '{"name": "Ada"}'; a text has double quotes inside them: '"Ada"'"""


def time_ms(text: str, option: str) -> int:
    """Parse a time with its zone into milliseconds. **Raises** UsageError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UsageError(f"{option} {text!r} is not a time with a zone", hint="write 2030-01-31T12:00Z")
    return int(moment.timestamp() * 1000)


def until_ms(text: str, option: str, *, ahead: int = 1) -> int:
    """Parse a time with its zone, or a duration from now; 0 means never. **Raises** UsageError."""
    if not text:
        return 0
    return time_ms(text, option) if "-" in text else clock_ms() + ahead * duration_ms(option, text)


def since_ms(text: str, option: str = "--since") -> int:
    """Parse a time with its zone, or a duration before now; 0 means no limit. **Raises** UsageError."""
    return until_ms(text, option, ahead=-1)
