"""Every route of the document with hostile values: no answer but those that it declares, and none that fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import quote

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.client.operations.operation import RunInput
from refold.client.platform import Platform
from refold.console.gateway import site as gateway_site
from refold.console.gateway import writing
from refold.console.gateway.app import routed
from refold.console.gateway.selecting import Cursor, Selection
from refold.console.gateway.streams import RunStreams
from refold.core.messages import ApprovalVote
from refold.core.wire import codec
from refold.engine.runtime.settings import GatewayPart
from tests.gateway.test_reading import Bench

DOCUMENT = routed().openapi()
OPERATIONS = [
    (path, method, operation) for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
]
TEXTS = st.one_of(
    st.sampled_from(
        [
            *(
                "run-1",
                "run-5",
                "nobody",
                "",
                " ",
                ".",
                "..",
                "../../etc/passwd",
                "a/b",
                "%2F",
                "%00",
                "\x00",
                "\r\nX-Evil: 1",
            ),
            *("0", "1", "33", "-1", "1e3", "NaN", "Infinity", "true", "null", "9" * 30, "1.5", "٣", "²", "x" * 1_000),
            *(
                "' or 1=1 --",
                '"; drop table runs',
                "%",
                "_",
                "\\",
                "team=pay",
                "=",
                "=x",
                "run-log/0/1",
                "run-log/0/9999999",
            ),
            *(
                "run-requested/0/0",
                "run-1/3",
                "run-1/3~1:" + "0" * 32,
                "cb_run-1_x",
                "[]",
                "{}",
                "\ufeff",
                "\U0001f600",
                "ä",
            ),
            *("-at_ms", "--at_ms", "completed", "doubt", "open", "WyJ4IiwgMV0=", "bnVsbA==", "W10="),
        ]
    ),
    st.text(max_size=40),
)
NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([2**53, 2**63, -(2**63), 10**400, 0.1, -0.0, 1e-310, 1e308])
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, st.just("\ud800"))
DATA = st.recursive(LEAVES, lambda inner: st.one_of(st.lists(inner), st.dictionaries(TEXTS, inner)), max_leaves=12)
ODD = st.sampled_from(
    [
        *(
            b"",
            b"{",
            b"null",
            b"[" * 70_000,
            b"\xff",
            b"\x00",
            b'{"a": 1, "a": 2}',
            b'{"agent": "\\ud800"}',
            b'{"agent": 1e999}',
        ),
        *(
            b'{"agent": "ten", "labels": {%s}}' % b", ".join(b'"%d": ""' % n for n in range(10_000)),
            b" " * 100_000 + b"{}",
        ),
    ]
)


class Taking:
    """Encodes what is published, as Kafka's publisher does, and counts it."""

    sent = 0

    def send(self, message: RunInput | ApprovalVote) -> tuple[int, int]:
        codec.encode(message)
        self.sent += 1
        return 0, 0


class Heard(Platform):
    """A platform whose inputs are taken, and have no outcome."""

    publisher: Any = Taking()


class Ending(RunStreams):
    """Streams that end after a moment: the client in this process waits for the end of each."""

    async def follow(self, selection: Selection, at: Cursor, **more: Any) -> AsyncIterator[bytes]:
        stream = super().follow(selection, at, **more)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                async for chunk in stream:
                    yield chunk


@pytest.fixture(scope="module")
def site() -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing.Refusals, "_listen", lambda refusals: refusals.listens.set())
        patch.setattr(gateway_site, "RunStreams", Ending)
        site = Bench(Heard, GatewayPart(writes={"program": 10**9}), wait_s=0.0)
        site.log.mark("run-5")
        site.log.bury("run-5")
        site.catch_up()
        with site.http:
            yield site


def values(parameter: dict[str, Any]) -> st.SearchStrategy[str]:
    if parameter["name"] == "wait":
        return st.sampled_from(["0", "-1", "nan", "inf", "31", "x", ""])
    schema = parameter["schema"]
    if "enum" in schema:
        return st.one_of(st.sampled_from(schema["enum"]), TEXTS)
    return st.one_of(TEXTS, NUMBERS.map(str)) if schema.get("type") in ("integer", "number") else TEXTS


def bodies(operation: dict[str, Any]) -> st.SearchStrategy[bytes]:
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    named = json.dumps(schema).split("schemas/")[1].split('"')[0]
    fields = DOCUMENT["components"]["schemas"][named]["properties"]
    known = {
        name: st.one_of(st.sampled_from(field["enum"]), DATA) if "enum" in field else st.one_of(TEXTS, DATA)
        for name, field in fields.items()
    }
    whole = st.fixed_dictionaries({}, optional={**known, "more": DATA})
    return st.one_of(ODD, st.one_of(whole, DATA).map(lambda value: json.dumps(value).encode()))


def _quoted(text: str, slashes: bool) -> str:
    # The client takes segments of dots out of a path by itself.
    return quote(text, safe="/" if slashes else "").replace(".", "%2E")


@st.composite
def requests(draw: st.DrawFn, path: str, operation: dict[str, Any]) -> dict[str, Any]:
    query: list[tuple[str, str]] = []
    headers: dict[str, bytes] = {}
    for parameter in operation.get("parameters", ()):
        name = parameter["name"]
        if parameter["in"] == "path":
            path = path.replace(f"{{{name}}}", _quoted(draw(values(parameter)), draw(st.booleans())))
        elif draw(st.booleans()):
            value = draw(values(parameter))
            if parameter["in"] == "query":
                query += [(name, value)] * draw(st.sampled_from([1, 1, 2, 21]))
            else:
                headers[name] = value.encode().translate(None, bytes(range(32)))[:4_000]
    found: dict[str, Any] = {"url": path, "params": query, "headers": headers}
    if "requestBody" in operation:
        found["content"] = draw(bodies(operation))
        headers["content-type"] = draw(st.sampled_from([b"application/json"] * 6 + [b"text/plain", b""]))
    return found


def _content(operation: dict[str, Any], status: str) -> dict[str, Any]:
    """Declared contents of an answer by their type; a route shares most refusals with others."""
    declared = operation["responses"][status]
    shared = DOCUMENT["components"]["responses"]
    whole = shared[declared["$ref"].rpartition("/")[2]] if "$ref" in declared else declared
    return dict(whole.get("content", {}))


@cache
def validator(name: str, status: str, kind: str) -> jsonschema_rs.Validator:
    operation = next(each for _, _, each in OPERATIONS if each["operationId"] == name)
    schema = _content(operation, status)[kind]["schema"]
    return jsonschema_rs.Draft202012Validator({**schema, "components": DOCUMENT["components"]})


@pytest.mark.parametrize(
    ("path", "method", "operation"),
    OPERATIONS,
    ids=lambda each: each.get("operationId") if isinstance(each, dict) else "",
)
def test_no_value_leads_to_an_answer_that_is_not_declared(
    site: Bench, path: str, method: str, operation: dict[str, Any]
) -> None:
    @settings(deadline=None)
    @given(requests(path, operation))
    def ask(request: dict[str, Any]) -> None:
        before = Heard.publisher.sent
        found = site.http.request(method, **request)

        assert found.status_code < 400 or Heard.publisher.sent == before, "refused, and sent all the same"
        assert found.status_code < 500 or found.status_code == 503, found.text
        kind = found.headers.get("content-type", "").partition(";")[0]
        if found.status_code >= 400:
            assert found.json().get("code") != "internal"
        if found.status_code in (404, 405) and found.json().get("code") in ("no_route", "no_method"):
            return  # a slash or a dot in an id: the path is another
        declared = _content(operation, str(found.status_code))
        assert kind in declared or (found.status_code, kind) == (204, "")
        if kind.endswith("json"):
            validator(operation["operationId"], str(found.status_code), kind).validate(found.json())

    ask()
