"""Tools: what a decorator accepts, how arguments become canonical JSON, how a tool is run and its result is read."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, Field

from refold import DID_NOT_HAPPEN, App, CallFailed, Cancelled, Heartbeat, UsageError
from refold.core.events import CallCompleted, Failure, RetryPolicy, SleepEnded
from refold.core.events import CallFailed as CallFailedEvent
from refold.core.wire import canonical
from tests.sdk.attempts import run_probe, run_tool, tool


class Colour(Enum):
    RED = "red"


class Image(BaseModel):
    name: str
    tag: str = Field(default="latest", alias="Tag")


def test_a_decorated_function_stays_a_function_and_an_undeclared_effect_is_once() -> None:
    app = App("tests")

    @app.tool
    def double(n: int) -> int:
        """Doubles a number."""
        return 2 * n

    found = app.tools["double"]
    assert double(4) == 8
    assert (found.effect, found.pool, found.description) == ("once", "default", "Doubles a number.")
    assert (found.timeout_ms, found.key_window_ms, found.policy) == (60_000, 0, RetryPolicy(attempts=5))
    assert len(found.version) == 16


def test_arguments_become_one_canonical_object_with_the_defaults_filled_in() -> None:
    @tool()
    def push(
        image: Image, at: datetime, *, colour: Colour = Colour.RED, wait: timedelta = timedelta(seconds=5)
    ) -> None:
        pass

    text = push.canonical_args(Image(name="shop", Tag="1"), at=datetime(2024, 1, 2, tzinfo=UTC))

    assert text == '{"at":"2024-01-02T00:00:00Z","colour":"red","image":{"Tag":"1","name":"shop"},"wait":"PT5S"}'


@pytest.mark.parametrize(
    ("args", "kwargs", "wrong"),
    [
        (("shop",), {}, "n: Field required"),
        (("shop", "many"), {}, "n: Input should be a valid integer"),
        (("shop", 1, 2), {}, "3 positional arguments, and it takes 2"),
        (("shop", 1), {"name": "shop"}, "name given twice"),
        (("shop", 1), {"colour": "red"}, "colour: Extra inputs are not permitted"),
        (("", 1), {}, "name: String should have at least 1 character"),
        (("shop", 10**4_300), {}, "not JSON"),
        (("shop", 1), {"extra": object()}, "not JSON"),
        (("shop", 1), {"extra": float("inf")}, "extra: it would arrive as another value"),
        (("shop", 1), {"extra": "\ud800"}, "not JSON"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_the_reason(
    args: tuple[Any, ...], kwargs: dict[str, Any], wrong: str
) -> None:
    @tool()
    def order(name: Annotated[str, Field(min_length=1)], n: int, *, ratio: float = 0.5, extra: Any = None) -> None:
        pass

    with pytest.raises(UsageError, match=wrong) as error:
        order.canonical_args(*args, **kwargs)

    assert "tool order" in error.value.message


def test_arguments_nested_deeper_than_a_reader_takes_are_refused() -> None:
    @tool()
    def keep(data: Any) -> None:
        pass

    deep: Any = 0
    for _ in range(canonical.MAX_DEPTH):
        deep = [deep]

    with pytest.raises(UsageError, match="nested deeper"):
        keep.canonical_args(deep)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-1e15, 1e15)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)


def _identity(data: Any, more: dict[str, Any]) -> Any:
    return [data, more]


IDENTITY = tool(effect="pure")(_identity)


@given(data=plain, more=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), plain, max_size=3))
def test_what_an_agent_hands_over_reaches_the_tool_unchanged_and_comes_back_unchanged(
    data: Any, more: dict[str, Any]
) -> None:
    text = IDENTITY.canonical_args(data, more)

    result = run_tool(IDENTITY, text)

    assert text == IDENTITY.canonical_args(more=more, data=data) == canonical.dumps(canonical.parse(text))
    assert IDENTITY.read(CallCompleted(1, 1, result)) == [data, more]


def test_what_the_executor_hands_to_a_tool_needs_no_type() -> None:
    @tool(effect="keyed")
    def asks(*, idempotency_key, heartbeat) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001
        return str(idempotency_key)

    assert run_tool(asks, "{}", key="abc") == '"abc"'


def test_a_tool_gets_the_key_and_the_heartbeat_only_if_it_asks() -> None:
    clock_probe = Heartbeat()

    @tool(effect="keyed")
    async def asks(n: int, *, idempotency_key: str, heartbeat: Heartbeat) -> list[Any]:
        return [n, idempotency_key, heartbeat is clock_probe]

    @tool(effect="once")
    def asks_not(n: int) -> int:
        return n

    assert asks.canonical_args(7) == '{"n":7}'
    assert run_tool(asks, '{"n":7}', key="abc", heartbeat=clock_probe) == '[7,"abc",true]'
    assert run_tool(asks_not, '{"n":7}') == "7"


def test_arguments_that_no_longer_fit_the_signature_are_refused_before_the_tool_begins() -> None:
    @tool()
    def narrow(n: int) -> None:
        raise AssertionError("the tool must not begin")

    for text in ('{"n":"many"}', "{}", '{"n":1,"m":2}', "[1]", "not json"):
        with pytest.raises(UsageError, match="tool narrow"):
            narrow.run(text, idempotency_key="k", heartbeat=Heartbeat())


def test_a_heartbeat_interrupts_once_the_call_is_cancelled_and_is_no_exception_to_catch_by_accident() -> None:
    clock_probe = Heartbeat()
    clock_probe()

    clock_probe.cancel("timeout")
    clock_probe.cancel("shutdown")

    with pytest.raises(Cancelled, match="timeout"):
        clock_probe()
    assert clock_probe.cancelled
    assert not issubclass(Cancelled, Exception)


def test_whatever_a_validator_of_the_author_raises_the_value_is_refused() -> None:
    app = App("ports")

    @app.tool(effect="pure")
    def open_port(port: Annotated[int, BeforeValidator({"http": 80, 443: 443}.__getitem__)]) -> int:
        return port

    found = app.tools["open_port"].arguments

    assert found.load('{"port":"http"}') == {"port": 80}
    with pytest.raises(UsageError, match="its validator raised KeyError: 'ssh'"):
        found.load('{"port":"ssh"}')
    with pytest.raises(UsageError, match="its validator raised KeyError: 'ssh'"):
        found.canonical(("ssh",), {})


def test_a_result_is_validated_against_the_annotation_in_both_directions() -> None:
    @tool()
    def build(name: str) -> Image:
        return Image(name=name)

    assert build.result_json({"name": "shop", "Tag": "1"}) == '{"Tag":"1","name":"shop"}'
    assert build.read(CallCompleted(1, 1, '{"name":"shop"}')) == Image(name="shop")
    with pytest.raises(UsageError, match="result of tool build: .*Image"):
        build.result_json(None)
    with pytest.raises(UsageError, match="name: Field required"):
        build.read(CallCompleted(1, 1, "{}"))


@pytest.mark.parametrize("value", [object(), {1, object()}, b"\xff", lambda: 0, [10**4_300]])
def test_a_result_that_is_not_json_is_refused(value: Any) -> None:
    @tool()
    def anything() -> Any: ...

    with pytest.raises(UsageError, match="result of tool anything: not JSON"):
        anything.result_json(value)


def test_a_failed_call_raises_with_the_recorded_code_and_message() -> None:
    outcome = CallFailedEvent(1, 3, Failure("quota", "no room left", "disk 7"))

    with pytest.raises(CallFailed, match="_identity failed: no room left") as error:
        IDENTITY.read(outcome)

    assert error.value.fields == {"tool": "_identity", "code": "quota", "message": "no room left", "detail": "disk 7"}
    with pytest.raises(UsageError, match="SleepEnded is not the outcome of a call"):
        IDENTITY.read(SleepEnded(1))


def test_a_probe_says_what_happened_that_it_did_not_or_nothing_certain() -> None:
    done: dict[str, Any] = {"k1": 5, "k2": "garbage"}

    def probe(n: int, *, idempotency_key: str) -> Any:
        return done.get(idempotency_key, DID_NOT_HAPPEN)

    @tool(effect="probed", probe=probe)
    def add(n: int, m: int) -> int:
        return n + m

    assert run_probe(add, '{"m":2,"n":3}', key="k1") == "5"
    assert run_probe(add, '{"m":2,"n":3}', key="k0") is None
    with pytest.raises(UsageError, match="result of tool add"):
        run_probe(add, '{"m":2,"n":3}', key="k2")


def test_a_probe_may_be_async() -> None:
    async def probe(*, idempotency_key: str) -> str:
        await asyncio.sleep(0)
        return idempotency_key

    @tool(effect="probed", probe=probe)
    def act() -> str:
        return ""

    assert run_probe(act, "{}", key="abc") == '"abc"'


def test_the_schema_of_the_arguments_names_every_parameter() -> None:
    @tool()
    def order(name: str, n: int = 1, *, idempotency_key: str) -> list[int]:
        return [n]

    assert order.schema()["required"] == ["name"]
    assert set(order.schema()["properties"]) == {"name", "n"}
    assert order.schema()["additionalProperties"] is False
    assert order.result.schema == {"items": {"type": "integer"}, "type": "array"}


def test_the_version_of_a_tool_is_that_of_its_code(tmp_path: Path) -> None:
    versions = []
    for number, body in enumerate(("return 1", "return 2", "return 1")):
        file = tmp_path / f"app{number}.py"
        file.write_text(f"from refold import App\napp = App('a')\n@app.tool\ndef act() -> int:\n    {body}\n")
        versions.append(App.load(str(file)).tools["act"].version)

    assert versions[0] == versions[2] != versions[1]


def test_canonical_arguments_take_microseconds() -> None:
    @tool()
    def order(name: str, n: int = 1, note: str = "") -> None: ...

    best = sys.float_info.max
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(200):
            order.canonical_args("shop", 3)
        best = min(best, (time.perf_counter() - began) / 200)

    assert best < 100e-6  # 12 us on a quiet machine; a model made per call would take 500
