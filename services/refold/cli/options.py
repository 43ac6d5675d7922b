"""Options and arguments that several commands share."""

from typing import Annotated

Natural = Annotated[int, {"min": 0}]
Positive = Annotated[int, {"min": 1}]
Seconds = Annotated[float, {"min": 0.1}]
KafkaOption = Annotated[str, "HOST:PORT", "Kafka's bootstrap address."]
RedisOption = Annotated[str, "URL", "Address of Redis or Valkey."]
DataOption = Annotated[str, "FOLDER", "Data folder of `refold dev`.  \\[default: .refold]", {"envvar": "REFOLD_DATA"}]
JsonOption = Annotated[bool, "Print JSON, one value."]
RunArgument = Annotated[str, "RUN", "The run's id."]
AgentOption = Annotated[str, "NAME", "Only runs of this agent."]
SessionOption = Annotated[str, "ID", "Only runs of this session."]
LabelOption = Annotated[list[str] | None, "K=V", "Only runs with this label. May be repeated."]
SignOption = Annotated[str, "FILE", "Key that signs the request.  \\[default: the only one in --data, if any]"]
ActorOption = Annotated[str, "Name to record as the actor.  \\[default: your login]"]
RootOption = Annotated[
    str,
    "FILE",
    "Root key, which signs the catalog.  \\[default: keys/root.json in --data]",
    {"envvar": "REFOLD_ROOT"},
]
ArchiveOption = Annotated[str, "URL", "Archive: file:///folder or s3://bucket/path.  \\[default: REFOLD_ARCHIVE__URL]"]
PoliciesOption = Annotated[str, "FOLDER", "Policy files.  \\[default: policies/, if it exists]"]
ReasonOption = Annotated[str, "Reason, for the history."]
