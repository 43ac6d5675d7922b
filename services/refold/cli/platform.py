"""Where Kafka and Redis are for a command: an option, the environment, a running `refold dev`, or the default."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.core.errors import UnreachableError, UsageError

if TYPE_CHECKING:
    from refold.adapters.kafka.publisher import KafkaPublisher
    from refold.client.runs import Runs
    from refold.runtime.settings import Settings

DATA = Path(".refold")
KNOCK_S = 3.0
"""How long a server may take to accept a connection; a whole question to Kafka would take 10 s to give up."""

KafkaOption = Annotated[
    str, typer.Option("--kafka", help="Kafka's bootstrap address.", metavar="HOST:PORT", show_default=False)
]
RedisOption = Annotated[
    str, typer.Option("--redis", help="Address of Redis or Valkey.", metavar="URL", show_default=False)
]
DataOption = Annotated[
    str,
    typer.Option(
        "--data", envvar="REFOLD_DATA", help="Folder of a `refold dev`  [default: .refold]", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print data, one JSON value.")]


@dataclass(frozen=True)
class Platform:
    """What a command talks to. Nothing is opened before it is used."""

    settings: Settings

    @cached_property
    def runs(self) -> Runs:
        """The runs in the log. **Raises** UnreachableError at once when nobody listens."""
        from refold.adapters.kafka.reader import KafkaLogReader
        from refold.client.runs import Runs

        self.knock()
        return Runs(KafkaLogReader(self.settings.kafka))

    @cached_property
    def publisher(self) -> KafkaPublisher:
        """Sends inputs and dead letters."""
        from refold.adapters.kafka.publisher import KafkaPublisher

        return KafkaPublisher(self.settings.kafka, partitions=self.runs.partitions, source="refold-cli")

    def knock(self) -> None:
        """**Raises** UnreachableError when no broker of the list accepts a connection."""
        servers = self.settings.kafka.bootstrap.split(",")
        if not any(listens(server) for server in servers):
            raise UnreachableError(
                f"nobody listens at {self.settings.kafka.bootstrap}, where Kafka should be",
                hint="`refold dev` starts one here; --kafka or REFOLD_KAFKA__BOOTSTRAP names another",
            )


def connect(*, kafka: str = "", redis: str = "", data: str = "", **overrides: Any) -> Platform:
    """The platform that a command is about."""
    from refold.runtime.settings import load

    quiet()
    running = running_dev(data)
    parts: dict[str, dict[str, str]] = {}
    if address := kafka or os.environ.get("REFOLD_KAFKA__BOOTSTRAP") or running.get("kafka"):
        parts["kafka"] = {"bootstrap": address}
    if address := redis or os.environ.get("REFOLD_REDIS__URL") or running.get("redis"):
        parts["redis"] = {"url": address}
    return Platform(load(**parts, **overrides))


def quiet() -> None:
    """Keeps what clients log off stdout, where the command's own words go; the command tells its errors itself."""
    import logging

    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def data_dir(data: str = "") -> Path:
    """The data folder of `refold dev`."""
    return Path(data or os.environ.get("REFOLD_DATA") or DATA)


def login() -> str:
    """Who uses the command line, as the history tells it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "cli"


def running_dev(data: str = "") -> dict[str, Any]:
    """What dev.json says, or nothing when no `refold dev` runs on the folder."""
    try:
        found = json.loads((data_dir(data) / "dev.json").read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def listens(server: str) -> bool:
    """Whether somebody accepts connections at `host:port`."""
    host, _, port = server.strip().rpartition(":")
    try:
        socket.create_connection((host.strip("[]") or "127.0.0.1", int(port)), KNOCK_S).close()
    except (OSError, ValueError):
        return False
    return True


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
