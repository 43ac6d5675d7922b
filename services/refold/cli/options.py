"""Options and arguments that commands share, each with its help. How they are read is in `groups`."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer


class AtLeast(NamedTuple):
    """The smallest number that an option takes."""

    number: float


Natural = Annotated[int, AtLeast(0)]
Positive = Annotated[int, AtLeast(1)]
Seconds = Annotated[float, AtLeast(0.1)]
KafkaOption = Annotated[str, "HOST:PORT", "Kafka's bootstrap address."]
RedisOption = Annotated[str, "URL", "Address of Redis or Valkey."]
DataOption = Annotated[
    str,
    typer.Option("--data", envvar="REFOLD_DATA", help="Folder of a `refold dev`  \\[default: .refold]"),
]
JsonOption = Annotated[bool, "Print data, one JSON value."]
RunArgument = Annotated[str, "RUN", "The run's id."]
AgentOption = Annotated[str, "NAME", "Only runs of this agent."]
SessionOption = Annotated[str, "ID", "Only runs of this session."]
LabelOption = Annotated[list[str] | None, "K=V", "Only runs with this label; may be repeated."]
SignOption = Annotated[str, "FILE", "The key that signs who asks for it; without it, the only one in --data, if any."]
ActorOption = Annotated[str, "Name to record as the actor.  \\[default: your login]"]
RootOption = Annotated[
    str,
    typer.Option(
        "--root",
        envvar="REFOLD_ROOT",
        metavar="FILE",
        help="The root key, which signs the catalog.  \\[default: keys/root.json in --data]",
    ),
]
ArchiveOption = Annotated[str, "URL", "file:///folder or s3://bucket/path.  \\[default: REFOLD_ARCHIVE__URL]"]
PoliciesOption = Annotated[str, "FOLDER", "Policy files.  \\[default: policies/, if it is there]"]
ReasonOption = Annotated[str, "Why; it stays in the history."]
