"""The agent `plan`: a list of steps as data, run in order, with references to earlier results."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from refold import App, CallFailed, TerminalError, UsageError
from refold.core.wire.canonical import dumps, parse
from refold.testing import AgentRun, run, start

app = App("plans", plan=True)


class Built(BaseModel):
    image: str
    layers: list[dict[str, int]]


@app.tool(effect="keyed")
def build(name: str, version: int = 1, *, idempotency_key: str) -> Built:
    return Built(image=f"{name}:{version}", layers=[{"size": 7}])


@app.tool(effect="keyed")
def push(image: str, labels: dict[str, Any] | None = None, *, idempotency_key: str) -> str:
    if image.startswith("bad"):
        raise TerminalError("the registry is full")
    return f"pushed {image}"


@app.tool(effect="pure")
def add(a: int, b: int) -> int:
    return a + b


def calls(driven: AgentRun) -> list[str]:
    return [call.tool + dumps(call.args) for call in driven.calls]


def test_a_plan_runs_in_order_and_feeds_results_into_later_steps() -> None:
    steps = [
        {"name": "build", "tool": "build", "args": {"name": "shop"}},
        {
            "name": "push",
            "tool": "push",
            "args": {"image": {"$ref": "build.image"}, "labels": {"all": {"$ref": "build"}}},
        },
        {"name": "sum", "tool": "add", "args": {"a": {"$ref": "build.layers.0.size"}, "b": 1}},
    ]

    driven = run(app, "plan", steps=steps)

    built = {"image": "shop:1", "layers": [{"size": 7}]}
    result = app.agents["plan"].result_json(driven.value)
    assert parse(result) == {"results": {"build": built, "push": "pushed shop:1", "sum": 8}}
    assert calls(driven)[1] == ('push{"image":"shop:1","labels":{"all":{"image":"shop:1","layers":[{"size":7}]}}}')
    assert driven.notes == [("plan", {"steps": steps})]


def test_a_failed_step_fails_the_run_and_is_named() -> None:
    driven = run(
        app,
        "plan",
        steps=[
            {"name": "first", "tool": "push", "args": {"image": "bad:1"}},
            {"name": "second", "tool": "push", "args": {"image": "good:1"}},
        ],
    )

    with pytest.raises(CallFailed, match="step 'first': push failed: the registry is full") as error:
        _ = driven.value

    assert (error.value.fields["step"], error.value.fields["code"]) == ("first", "terminal")
    assert len(calls(driven)) == 1


BUILD = {"name": "build", "tool": "build", "args": {"name": "shop"}}


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        ([BUILD, BUILD], "step 'build' is there twice"),
        ([BUILD, {"name": "x", "tool": "destroy"}], "step 'x': app plans has no tool destroy"),
        ([BUILD, {"name": "x", "tool": "add", "args": {"a": 1}}], "step 'x': tool add: b: Field required"),
        (
            [BUILD, {"name": "x", "tool": "push", "args": {"image": {"$ref": "later"}}}],
            "refers to 'later'.*earlier: build",
        ),
        ([{"name": "x", "tool": "push", "args": {"image": {"$ref": "x"}}}], "refers to 'x'.*there is none"),
        ([BUILD, {"name": "x", "tool": "push", "args": {"image": {"$ref": 5}}}], "step 'x': .ref is 5"),
        (
            [BUILD, {"name": "x", "tool": "push", "args": {"picture": {"$ref": "build"}}}],
            "step 'x': tool push takes no picture",
        ),
    ],
)
def test_what_can_be_known_to_be_wrong_is_told_before_the_first_call(steps: list[Any], wrong: str) -> None:
    driven = run(app, "plan", steps=steps)

    with pytest.raises(UsageError, match=wrong):
        _ = driven.value
    assert calls(driven) == []


@pytest.mark.parametrize(
    ("reference", "wrong"),
    [
        ("build.picture", "at 'picture' there is only image, layers"),
        ("build.layers.1", "at '1' there is only a list"),
        ("build.image.0", "at '0' there is only a str"),
        ("build.layers", "step 'x': tool push: image: Input should be a valid string"),
    ],
)
def test_a_reference_that_leads_nowhere_names_what_is_there(reference: str, wrong: str) -> None:
    driven = run(app, "plan", steps=[BUILD, {"name": "x", "tool": "push", "args": {"image": {"$ref": reference}}}])

    with pytest.raises(UsageError, match=wrong):
        _ = driven.value


@pytest.mark.parametrize("text", ["null", '{"steps":[{"name":"a.b","tool":"add"}]}', '{"steps":[{"tool":"add"}]}'])
def test_a_plan_that_is_none_is_refused_as_input(text: str) -> None:
    with pytest.raises(UsageError, match="input of agent plan: steps"):
        app.agents["plan"].validate_input(text)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12))
def test_a_plan_does_what_the_same_calls_in_python_do_and_skips_what_is_done(pairs: list[tuple[int, int]]) -> None:
    steps: list[dict[str, Any]] = []
    expected: dict[str, int] = {}
    for index, (a, b) in enumerate(pairs):
        earlier = f"s{b % index}" if index and b % 2 else None
        steps.append({"name": f"s{index}", "tool": "add", "args": {"a": a, "b": {"$ref": earlier} if earlier else b}})
        expected[f"s{index}"] = a + (expected[earlier] if earlier else b)

    driven = start(app, "plan", steps=steps)
    while driven.open:
        driven.take_over()
        driven.settle(driven.open[0])

    assert driven.value.results == expected
    assert len(calls(driven)) == len(pairs)
