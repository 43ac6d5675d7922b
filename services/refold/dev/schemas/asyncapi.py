"""The AsyncAPI document: topics for outside programs, with references to the Avro files."""

import re
from collections.abc import Mapping
from inspect import getdoc
from typing import Any

from refold.core.events import Entry
from refold.core.messages import DeadLetter
from refold.core.topics import DEAD_LETTER, DEAD_LETTERS, kind_of
from refold.core.wire.codec import SUBJECTS
from refold.core.wire.schemas import Registered, file_name, locked

OUTSIDE = frozenset({"client", "approver", "steward", "viewer", "insights"})
"""Principals of programs outside the platform, except operators of Kafka."""

_KEY = re.compile(r"key ([^\s:,]+)[:,]")
_KEYS: dict[type, str] = {Entry: "run_id/seq/entry_id", DeadLetter: "the key of the input"}
_DEFAULT_PREFIX = "refold."
_CLOUD_EVENT = ("specversion", "type", "source", "id", "subject", "time")
_HEADER_NAMES = (*(f"ce_{name}" for name in _CLOUD_EVENT), "content-type", "traceparent")
_HEADERS = {
    "type": "object",
    "description": "CloudEvents 1.0, binary mode. Records of clients need none.",
    "properties": {name: {"type": "string"} for name in _HEADER_NAMES},
}


def asyncapi(topics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """AsyncAPI document of the topics of `infra/topics.yaml`, by name."""
    messages = {line.subject: _message_object(line) for line in {line.subject: line for line in locked()}.values()}
    public = {name: topic for name, topic in topics.items() if OUTSIDE & {*topic["writers"], *topic["readers"]}}
    used = {subject for name in public for subject in messages if _is_in_topic(subject, name)}
    operations: dict[str, Any] = {}
    for name, topic in public.items():
        for action, verb, roles in (("send", "write", topic["writers"]), ("receive", "read", topic["readers"])):
            operations[f"{verb}-{kind_of(name)}"] = {
                "action": action,
                "channel": {"$ref": f"#/channels/{kind_of(name)}"},
                "summary": f"Principals that {verb} it: {', '.join(roles)}.",
                "tags": [{"name": role} for role in roles],
            }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Refold",
            "version": "0.1.0",
            "description": "Topics that external programs may write or read. `infra/topics.yaml` contains the rights.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/vnd.apache.avro+binary",
        "channels": {kind_of(name): _channel_object(name, topic, messages) for name, topic in public.items()},
        "operations": operations,
        "components": {"messages": {subject: messages[subject] for subject in messages if subject in used}},
    }


def _channel_object(name: str, topic: Mapping[str, Any], messages: Mapping[str, Any]) -> dict[str, Any]:
    kind, pooled = kind_of(name), name != kind_of(name)
    parameters = {"prefix": {"description": "REFOLD_KAFKA__PREFIX", "default": _DEFAULT_PREFIX}}
    if pooled:
        parameters["pool"] = {"description": "pool of executors", "default": "default"}
    return {
        "address": f"{{prefix}}{kind}.{{pool}}" if pooled else f"{{prefix}}{kind}",
        "description": topic["doc"],
        "parameters": parameters,
        "messages": {
            subject: {"$ref": f"#/components/messages/{subject}"} for subject in messages if _is_in_topic(subject, name)
        },
    }


def _is_in_topic(subject: str, topic: str) -> bool:
    return kind_of(subject) == (DEAD_LETTER if topic in DEAD_LETTERS else kind_of(topic))


def _message_object(line: Registered) -> dict[str, Any]:
    cls = next(cls for cls, subject in SUBJECTS.items() if subject == line.subject)
    doc = (getdoc(cls) or "").partition("\n")[0]
    key = _KEY.search(doc)
    named = _KEYS.get(cls) or (key[1] if key else "")
    return {
        "name": cls.__name__,
        "summary": doc,
        "contentType": "application/vnd.apache.avro+binary",
        "headers": _HEADERS,
        "payload": {
            "schemaFormat": "application/vnd.apache.avro+json;version=1.9.0",
            "schema": {"$ref": f"./{file_name(line)}"},
        },
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": named},
                "schemaIdLocation": "payload",
                "schemaIdPayloadEncoding": "confluent",
                "bindingVersion": "0.5.0",
            }
        },
    }
