"""What a command talks to, and what many commands take alike: where the platform is, and how to tell what was found."""

from __future__ import annotations

import getpass
import logging
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from confluent_kafka import KafkaException

from refold.adapters.kafka import clients
from refold.adapters.kafka.publisher import KafkaPublisher
from refold.adapters.kafka.reader import KafkaLogReader
from refold.cli import output
from refold.cli.addresses import Addresses, addresses
from refold.client import catalog
from refold.client.catalog import Shelves
from refold.client.runs import Runs
from refold.core.approval.people import spelt
from refold.core.approval.trust import Trust
from refold.core.errors import UnreachableError, UsageError
from refold.runtime.settings import Settings

KNOCK_S = 3.0
"""How long a server may take to accept a connection; a whole question to Kafka would take 10 s to give up."""
KNOCK_AGAIN_S = 0.3

KafkaOption = Annotated[
    str, typer.Option("--kafka", help="Kafka's bootstrap address.", metavar="HOST:PORT", show_default=False)
]
RedisOption = Annotated[
    str, typer.Option("--redis", help="Address of Redis or Valkey.", metavar="URL", show_default=False)
]
DataOption = Annotated[
    str,
    typer.Option(
        "--data", envvar="REFOLD_DATA", help="Folder of a `refold dev`  \\[default: .refold]", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print data, one JSON value.")]
ActorOption = Annotated[str, typer.Option("--actor", help="Who says so.  \\[default: your login]", show_default=False)]


@dataclass(frozen=True)
class Platform:
    """What a command talks to. Nothing is opened before it is used."""

    where: Addresses

    @property
    def settings(self) -> Settings:
        """The settings of the command."""
        return self.where.settings

    @cached_property
    def runs(self) -> Runs:
        """The runs in the log. **Raises** UnreachableError at once when nobody listens."""
        self.knock()
        return Runs(KafkaLogReader(self.settings.kafka))

    @cached_property
    def trust(self) -> Trust:
        """The root keys that the catalog has to be signed by. **Raises** UsageError when none is known here."""
        if found := self.where.trust:
            return found
        hint = "set REFOLD_TRUST to what `refold keys init` has printed, or to @FILE with that"
        raise UsageError("no root key is trusted here, so nothing in the catalog holds", hint=hint)

    @property
    def catalog(self) -> Shelves:
        """The catalog, read now. **Raises** as `trust`."""
        return catalog.read(self.runs.reader, self.trust)

    @cached_property
    def publisher(self) -> KafkaPublisher:
        """Sends inputs and dead letters."""
        most = self.settings.max_payload_bytes
        return KafkaPublisher(
            self.settings.kafka, partitions=self.runs.partitions, source="refold-cli", payload_bytes=most
        )

    def knock(self) -> None:
        """**Raises** UnreachableError when no broker of the list accepts a connection."""
        self.where.check()
        if not self._listens():
            raise UnreachableError(
                f"nobody listens at {self.settings.kafka.bootstrap}, where Kafka should be",
                hint="`refold dev` starts one here; --kafka or REFOLD_KAFKA__BOOTSTRAP names another",
            )

    def wait(self, timeout_s: float) -> None:
        """Waits for a Kafka that is being started again. **Raises** as `knock` when it does not come back in time."""
        self.where.check()
        deadline, told = time.monotonic() + timeout_s, False
        while not self._answers(again=told):
            if time.monotonic() + KNOCK_AGAIN_S > deadline:
                return self.knock()
            if not told:
                output.warn(f"waiting for Kafka at {self.settings.kafka.bootstrap}")
            told = True
            time.sleep(KNOCK_AGAIN_S)
        return None

    def _listens(self) -> bool:
        return any(map(listens, self.settings.kafka.bootstrap.split(",")))

    def _answers(self, *, again: bool) -> bool:
        if not self._listens():
            return False
        try:  # a broker that has just been started listens before it can be used
            return not again or bool(clients.admin(self.settings.kafka).list_topics(timeout=1.0).brokers)
        except KafkaException:
            return False


@dataclass(frozen=True)
class Teller:
    """The option of what tells something without a platform."""

    json_: JsonOption = False

    def tell(self, value: Any, words: str | Callable[[], object]) -> None:
        """Tells what was found, as JSON or in words: lines of markup, or what prints them."""
        if self.json_:
            output.emit(value)
        elif isinstance(words, str):
            output.say(words)
        else:
            words()


@dataclass(frozen=True)
class Shell(Teller):
    """The options of most commands: where the platform is, and how to tell what was found."""

    kafka: KafkaOption = ""
    data: DataOption = ""

    @cached_property
    def platform(self) -> Platform:
        """The platform that the command is about."""
        return connect(kafka=self.kafka, data=self.data)

    @property
    def runs(self) -> Runs:
        """The runs in its log."""
        return self.platform.runs


@dataclass(frozen=True)
class Listing(Shell):
    """The options of a list that grows with time."""

    limit: Annotated[int, typer.Option("--limit", help="The newest so many.", min=1)] = 50


def connect(*, kafka: str = "", redis: str = "", data: str = "") -> Platform:
    """The platform that a command is about."""
    quiet()
    return Platform(addresses(kafka=kafka, redis=redis, data=data))


def quiet() -> None:
    """Keeps what clients log off stdout, where the command's own words go; the command tells its errors itself."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def login() -> str:
    """Who uses the command line, as the history tells it, and as names are written."""
    try:
        return spelt(getpass.getuser())
    except (OSError, KeyError):
        return "cli"


def listens(server: str) -> bool:
    """Whether somebody accepts connections at `host:port`."""
    host, _, port = server.strip().rpartition(":")
    try:
        socket.create_connection((host.strip("[]") or "127.0.0.1", int(port)), KNOCK_S).close()
    except (OSError, ValueError):
        return False
    return True


def pair(text: str, problem: str, *, hint: str) -> tuple[str, str]:
    """The two sides of `NAME=VALUE`. **Raises** UsageError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} {problem}", hint=hint)
    return name, value


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
        raise UsageError(f"cannot read {text[1:]}", hint=str(reason)) from None
