"""schemathesis on a real gateway: runs that it starts, asks for and steers, by the document alone.

Every answer is one that the document declares, in its schema, and nothing fails but with 503 and `Retry-After`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CheckContext
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.stateful import OpenAPIStateMachine

from tests.cli.terminal import Dev, served
from tests.contract.outside_node import ready
from tests.tidy.repository import ROOT
from tests.waiting import eventually

APP = ROOT / "examples" / "hello.py"


@schemathesis.check
def fails_only_for_a_while(ctx: CheckContext, response: Any, case: Any) -> bool | None:
    """No 5xx but 503, which says when to ask again."""
    assert response.status_code < 500 or (response.status_code == 503 and response.headers.get("retry-after"))
    return None


CHECKS = [
    fails_only_for_a_while,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Give a running platform with its gateway."""
    with served(APP, tmp_path_factory.mktemp("dev")) as running:
        eventually(lambda: ready(running.state["gateway"]), within=60, what="the gateway")
        yield running


def linked(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with links from every answer that names a run to every route about one."""
    about = [
        operation["operationId"]
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if "{run}" in path
    ]
    for answer, run in (("start_run 200", "run_id"), ("start_run 202", "run_id"), ("list_runs 200", "runs/0/run_id")):
        name, status = answer.split()
        operations = (each for methods in document["paths"].values() for each in methods.values())
        responses = next(each for each in operations if each["operationId"] == name)["responses"]
        responses[status]["links"] = {
            each: {"operationId": each, "parameters": {"path.run": f"$response.body#/{run}"}} for each in about
        }
    return document


def walked(platform: Dev, examples: int, steps: int) -> int:
    """Walks through the routes, each walk so many steps; returns how many answers were looked at."""
    gateway, seen = platform.state["gateway"], 0
    document = linked(httpx.get(f"{gateway}/openapi.json", timeout=30).json())
    schema = schemathesis.openapi.from_dict(document).exclude(path_regex="/stream$")
    schema.config.update(base_url=gateway)

    class Walk(schema.as_state_machine()):  # type: ignore[misc]
        def validate_response(self, response: Any, case: Any, **more: Any) -> None:
            nonlocal seen
            seen += 1
            if response.status_code in (404, 405) and response.json().get("code") in ("no_route", "no_method"):
                return  # of a segment `.` or `..` clients make another path
            case.validate_response(response, checks=CHECKS)

    assert issubclass(Walk, OpenAPIStateMachine)
    few = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        database=None,
        derandomize=True,
    )
    Walk.run(settings=few)
    return seen


@pytest.mark.long
def test_every_answer_is_one_that_the_document_declares(platform: Dev) -> None:
    assert walked(platform, 12, 10) > 40


@pytest.mark.long
def test_every_answer_of_long_walks_is_one_that_the_document_declares(platform: Dev) -> None:
    assert walked(platform, 300, 20) > 2_000
