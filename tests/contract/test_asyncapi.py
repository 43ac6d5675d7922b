"""The AsyncAPI document: valid, committed, and what the topics, their rights and their schemas are.

`asyncapi-3.0.0.json` is the JSON Schema of the specification (Apache-2.0), without its descriptions and examples.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from refold.core.ids import RunId
from refold.core.messages import RunRequest
from refold.core.wire import headers
from refold.core.wire.resources import resource
from refold.dev.schemas.asyncapi import asyncapi
from refold.engine.adapters.kafka.topics import declared

DOCUMENT = asyncapi(declared()["topics"])
SPECIFICATION = jsonschema_rs.Draft7Validator(json.loads(Path(__file__).with_name("asyncapi-3.0.0.json").read_text()))


def test_the_committed_document_is_the_one_of_the_topics() -> None:
    committed = resource("schemas", "asyncapi.json").read_text()

    assert committed == json.dumps(DOCUMENT, indent=1) + "\n", "refold schemas asyncapi > schemas/asyncapi.json"


def test_it_is_a_document_of_asyncapi() -> None:
    SPECIFICATION.validate(DOCUMENT)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found.pop("info"),
        lambda found: found.update(asyncapi="2.6.0"),
        lambda found: found["operations"]["read-run-log"].update(action="read"),
        lambda found: found["channels"]["run-log"].update(adress="x"),
        lambda found: found["components"]["messages"]["run-log"]["bindings"]["kafka"].update(key=7),
    ],
)
def test_the_specification_refuses_what_is_none(spoil: Callable[[Any], Any]) -> None:
    unreadable_result = copy.deepcopy(DOCUMENT)
    spoil(unreadable_result)

    assert not SPECIFICATION.is_valid(unreadable_result)


def test_every_reference_leads_somewhere_and_every_schema_is_the_file() -> None:
    text = json.dumps(DOCUMENT)
    found = [each.split('"')[0] for each in text.split('"$ref": "')[1:]]

    assert len(found) > 50
    for reference in found:
        if reference.startswith("./"):
            assert json.loads(resource("schemas", reference.removeprefix("./")).read_text())["type"] == "record"
            continue
        at: Any = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            at = at[part]


def test_writers_readers_keys_and_headers_are_those_of_the_platform() -> None:
    operations, messages = DOCUMENT["operations"], DOCUMENT["components"]["messages"]

    writers = {each["name"] for each in operations["write-run-requested"]["tags"]}
    assert writers == {"client", "planner", "operator", "gateway", "source"}
    assert "client" in {each["name"] for each in operations["read-run-log"]["tags"]}
    assert DOCUMENT["channels"]["run-stream"]["address"] == "{prefix}run-stream.{pool}"
    assert all(channel["messages"] for channel in DOCUMENT["channels"].values())
    assert all(message["bindings"]["kafka"]["key"]["description"] for message in messages.values())
    written = headers.cloud_event("run-log", RunId("r"), id="x", source="p", at_ms=1, trace="00-1-1-01")
    assert {name for name, _ in written} <= messages["run-log"]["headers"]["properties"].keys()
    assert messages["run-requested"]["name"] == RunRequest.__name__
