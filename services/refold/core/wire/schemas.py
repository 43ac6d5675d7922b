"""Avro schemas by id. `schemas/schemas.lock` is append-only, one line per schema: `id subject version sha256`. An id
never changes its meaning, so records are read without a registry."""

import json
from functools import cache
from typing import Any, NamedTuple

from refold.core.errors import FoldError
from refold.core.wire.resources import resource

RecordSchema = dict[str, Any]


class Registered(NamedTuple):
    id: int
    subject: str
    version: int
    sha256: str


def file_name(entry: Registered) -> str:
    return f"{entry.subject}.v{entry.version}.avsc"


def lock(content: str) -> list[Registered]:
    parts = [line.split() for line in content.split("\n") if line and not line.startswith("#")]
    return [Registered(int(number), subject, int(version), digest) for number, subject, version, digest in parts]


def locked() -> list[Registered]:
    return lock(resource("schemas", "schemas.lock").read_text())


@cache
def registered() -> tuple[dict[int, tuple[str, RecordSchema]], dict[str, tuple[int, RecordSchema]]]:
    """Schemas with their subject by id, and the newest by subject."""
    by_id: dict[int, tuple[str, RecordSchema]] = {}
    newest: dict[str, tuple[int, RecordSchema]] = {}
    for entry in locked():
        parsed = json.loads(resource("schemas", file_name(entry)).read_text())
        by_id[entry.id] = (entry.subject, parsed)
        newest[entry.subject] = (entry.id, parsed)
    return by_id, newest


def writer_schema(number: int, subject: str) -> RecordSchema:
    """Schema that a record was written with. **Raises** FoldError if the id is not one of the subject's."""
    entry = registered()[0].get(number)
    if not entry or entry[0] != subject:
        raise FoldError(f"schema id {number} is not a schema of {subject}", hint="the record needs a newer version")
    return entry[1]
