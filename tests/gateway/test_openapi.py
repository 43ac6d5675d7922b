"""The document that describes the gateway: complete, and the one that is committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refold.console.gateway.app import routed

DOCUMENT = routed().openapi()
SHARED = DOCUMENT["components"]["responses"]
OPERATIONS = [
    (path, method, operation) for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
]


def test_the_committed_document_is_the_one_of_the_routes() -> None:
    committed = Path(__file__).parents[2] / "schemas" / "openapi.json"

    assert committed.read_text() == json.dumps(DOCUMENT, indent=1) + "\n", (
        "refold schemas openapi > schemas/openapi.json"
    )


@pytest.mark.parametrize("operation", [each[2] for each in OPERATIONS], ids=lambda each: each["operationId"])
def test_every_route_is_described(operation: dict[str, Any]) -> None:
    assert operation["summary"]
    assert operation["description"]
    assert all(parameter.get("description") or "example" in parameter for parameter in operation.get("parameters", ()))
    for status in ("403", "413", "415", "421", "503"):
        assert "application/problem+json" in _response(operation["responses"][status])["content"]


def _response(described: dict[str, Any]) -> dict[str, Any]:
    """The response itself, where a route shares it with others."""
    return SHARED[described["$ref"].rpartition("/")[2]] if "$ref" in described else described


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [operation["operationId"] for _, _, operation in OPERATIONS]

    assert len(names) == len(set(names))


def test_every_problem_has_an_example_and_no_error_is_another_thing() -> None:
    for path, _, operation in OPERATIONS:
        for status, response in ((status, _response(each)) for status, each in operation["responses"].items()):
            if path.startswith("/registry/") and status == "404":
                assert "application/vnd.schemaregistry.v1+json" in response["content"]
            elif int(status) >= 400 and path != "/readyz":
                ((kind, content),) = response["content"].items()
                assert (kind, content["example"]["status"]) == ("application/problem+json", int(status)), path
