"""The values of records as plain dictionaries, as fastavro gives them: no code of `core` reads them."""

from __future__ import annotations

import json
from functools import cache
from io import BytesIO
from typing import Any

import fastavro

from refold.core.wire.resources import resource

Datum = dict[str, Any]


@cache
def _schemas() -> dict[int, Any]:
    found: dict[int, Any] = {}
    for line in resource("schemas", "schemas.lock").read_text().splitlines():
        if line and not line.startswith("#"):
            number, subject, version, _ = line.split()
            text = resource("schemas", f"{subject}.v{version}.avsc").read_text()
            found[int(number)] = fastavro.parse_schema(json.loads(text))
    return found


def read_value(value: bytes) -> Datum:
    """The content of a framed value; members of the union of events come as pairs of name and content."""
    if value[:1] != b"\0":
        raise ValueError("no frame")
    number = int.from_bytes(value[1:5], "big")
    found = fastavro.schemaless_reader(
        BytesIO(value[5:]), _schemas()[number], None, return_record_name=True, return_record_name_override=True
    )
    assert isinstance(found, dict)
    return found
