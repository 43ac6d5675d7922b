"""The schemas as a registry has them: clients of Confluent's registry read our records, by the ids that these carry."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from refold.console.gateway.app import build_api
from refold.core.events import CallCompleted, Entry, RunAnnotated
from refold.core.ids import RunId
from refold.core.messages import RunRequest
from refold.core.topics import RUN_LOG, RUN_REQUESTED
from refold.core.wire import codec
from refold.core.wire.resources import resource
from refold.core.wire.schemas import file_name, locked
from tests.gateway.test_reading import Bench, site  # noqa: F401 - the fixture

PREFIX = "refold."


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistryClient]:
    """Confluent's client on a gateway that listens."""
    bench, listening = Bench(), socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(build_api(bench.gateway), log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield SchemaRegistryClient({"url": f"http://127.0.0.1:{listening.getsockname()[1]}/registry"})
    server.should_exit = True
    thread.join()


def test_records_are_read_by_confluents_deserializer(registry: SchemaRegistryClient) -> None:
    read = AvroDeserializer(registry)
    entry = Entry(RunId("r-1"), 3, b"prev", 7, None, "p", b"n", [CallCompleted(1, 1, '"ä"'), RunAnnotated("n", "look")])

    found = read(codec.encode(entry), SerializationContext(PREFIX + RUN_LOG, MessageField.VALUE))

    assert (found["run_id"], found["seq"], found["prev"]) == ("r-1", 3, b"prev")
    assert [event.get("result") or event.get("note") for event in found["events"]] == ['"ä"', "look"]


def test_a_request_that_confluents_serializer_wrote_is_one(registry: SchemaRegistryClient) -> None:
    latest = {"auto.register.schemas": False, "use.latest.version": True}
    write = AvroSerializer(registry, conf=latest)
    request = RunRequest("r-1", "deploy", '{"a":1}', "ann", labels={"team": "pay"})  # type: ignore[arg-type]
    given = {name: getattr(request, name) for name in RunRequest.__dataclass_fields__}

    value = write(given, SerializationContext(PREFIX + RUN_REQUESTED, MessageField.VALUE))

    assert value == codec.encode(request)
    assert codec.decode(RunRequest, value) == request


def test_every_schema_is_served_under_the_id_of_the_lock_file(registry: SchemaRegistryClient) -> None:
    versions = dict[str, list[int]]()
    for line in locked():
        served = registry.get_version(f"{PREFIX}{line.subject}-value", line.version)
        by_id: Schema = registry.get_schema(line.id)
        assert (served.schema_id, served.version) == (line.id, line.version)
        committed = json.loads(resource("schemas", file_name(line)).read_text())
        assert json.loads(by_id.schema_str or "") == committed
        versions.setdefault(line.subject, []).append(line.version)
    for subject, there in versions.items():
        assert registry.get_versions(subject) == there == list(range(1, len(there) + 1))
        assert registry.get_latest_version(f"{PREFIX}{subject}-value").version == there[-1]
    assert set(registry.get_subjects()) == {f"{PREFIX}{line.subject}-value" for line in locked()}
    assert registry.get_latest_version(f"{PREFIX}tool-requested.bank-value").schema_id == 5
    assert registry.get_compatibility() == "BACKWARD_TRANSITIVE"


def test_what_is_not_there_is_an_error_of_a_registry(registry: SchemaRegistryClient) -> None:
    for ask, code in (
        (lambda: registry.get_schema(999), 40403),
        (lambda: registry.get_versions("nobody"), 40401),
        (lambda: registry.get_version(f"{PREFIX}run-log-value", 7), 40402),
        (lambda: registry.get_latest_version("nobody"), 40401),
    ):
        with pytest.raises(SchemaRegistryError) as found:
            ask()
        assert (found.value.error_code, found.value.http_status_code) == (code, 404)


@pytest.mark.parametrize(
    "odd", ["", "%00", "1e3", "../schemas.lock", "..%2Fschemas.lock", "-0", "01", "x" * 3_000, "²"]
)
def test_no_name_leads_anywhere_else(site: Bench, odd: str) -> None:  # noqa: F811
    for path in (f"/registry/schemas/ids/{odd}", f"/registry/subjects/{odd}/versions/latest"):
        assert site.http.get(path).status_code == 404, path
    assert site.http.get(f"/registry/subjects/run-log/versions/{odd}").status_code == 404
    assert site.http.post("/registry/subjects/run-log/versions", json={}).status_code == 405
    assert site.http.get("/registry/config", headers={"host": "evil.example"}).status_code == 421
