"""A long conversation goes on in a child of its run, and is the same conversation."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelResponse
from pydantic_ai.usage import UsageLimits

from refold import App, Budget, UsageError
from refold.contrib.pydantic_ai import CallOptions, durable, idempotency_key
from refold.contrib.pydantic_ai.conversation import dump_message
from refold.core.errors import NonDeterminismError
from refold.core.events import ApprovalRequested, ChildStarted, PatchTaken
from refold.testing import AgentRun, crash_matrix, replay, run
from tests.contrib.thinking import Model, calls, says

LAST = 4


class Deps(BaseModel):
    tags: list[str]


class Report(BaseModel):
    text: str


def talk(turn: int, messages: list[ModelMessage], last: int = LAST) -> ModelResponse:
    if turn == last:
        return calls(("final_result", {"text": "done"}))
    return calls(("act", {"number": turn}))


def long(requests: int, *, last: int = LAST, asks: bool = False, **options: Any) -> tuple[App, Model, list[Any]]:
    """An app with an agent of so many requests and one, and what its tool was told."""
    model, told = Model(partial(talk, last=last)), list[Any]()
    agent = Agent(model.model, name="long", instructions="Be long.", deps_type=Deps, output_type=Report)

    @agent.tool(requires_approval=asks, metadata={"refold": CallOptions(effect="keyed")})
    def act(ctx: RunContext[Deps], number: int) -> Any:
        idempotency_key()
        told.append((number, ctx.deps, ctx.usage.requests, ctx.conversation_id))
        return BinaryContent(data=b"\xff\x00", media_type="image/png") if number == 1 else f"{number} done"

    app = App("long")
    durable(app, agent, requests=requests, **options)
    return app, model, told


def go(app: App, **options: Any) -> AgentRun:
    return run(app, "long", prompt="go", deps={"tags": ["a"]}, **options)


def family(ended: AgentRun) -> list[AgentRun]:
    return [ended, *(each for child in ended.children for each in family(child))]


def asked(model: Model) -> list[Any]:
    return [[dump_message(message) for message in messages] for messages in model.asked]


def test_a_model_is_asked_the_same_and_a_tool_told_the_same_as_in_one_run() -> None:
    whole, one, told_one = long(99)
    parted, several, told = long(2)

    ended = go(parted)

    assert go(whole).value == ended.value == Report(text="done")
    assert [sum(call.tool.endswith("model.request") for call in each.calls) for each in family(ended)] == [2, 2, 1]
    assert asked(several) == asked(one)
    assert [each[:3] for each in told] == [each[:3] for each in told_one]
    assert len({conversation for *_, conversation in told}) == 1


def test_a_limit_holds_over_all_of_it() -> None:
    app, model, _ = long(2, usage_limits=UsageLimits(request_limit=3))

    ended = go(app)

    assert ended.failure is not None
    assert (ended.failure.code, len(model.asked)) == ("UsageLimitExceeded", 3)
    assert "request_limit of 3" in ended.failure.message


def test_a_budget_holds_over_all_of_it() -> None:
    app, model, _ = long(2, budget=Budget(calls=6))

    ended = go(app)

    assert ended.failure is not None
    assert sum(len(each.calls) for each in family(ended)) == 6
    assert len(model.asked) == 3


def test_people_are_asked_wherever_it_is() -> None:
    app, _, told = long(2, asks=True)

    ended = go(app)

    questions = [event for each in family(ended) for event in each.events if isinstance(event, ApprovalRequested)]
    assert (len(questions), len(told)) == (LAST, LAST)


def test_a_history_of_before_is_gone_along_in_its_one_run() -> None:
    before, _, _ = long(99)
    ended = go(before)
    assert not any(isinstance(event, ChildStarted | PatchTaken) for event in ended.events)

    replay(long(2)[0], ended)


def test_a_history_of_another_bound_is_not_taken_for_one_of_before() -> None:
    ended = go(long(2)[0])

    with pytest.raises(NonDeterminismError):
        replay(long(99)[0], ended)


def test_wherever_it_is_killed_it_goes_on() -> None:
    app, _, _ = long(1, last=2)

    crash_matrix(app, "long", {"prompt": "go", "deps": {"tags": []}})


def test_a_tool_that_is_to_be_tried_again_is_so_in_the_same_run() -> None:
    said = [calls(("act", {})), calls(("act", {})), calls(("act", {})), says("done")]
    model = Model(lambda turn, messages: said[turn])
    agent, tries = Agent(model.model, name="long", retries=2), list[int]()

    @agent.tool(metadata={"refold": CallOptions(effect="pure")})
    def act(ctx: RunContext[None]) -> str:
        tries.append(ctx.retry)
        if len(tries) < 3:
            raise ModelRetry("again")
        return "done"

    app = App("long")
    durable(app, agent, requests=1)
    ended = run(app, "long", prompt="go")

    assert (ended.value, tries) == ("done", [0, 1, 2])
    assert [len(each.calls) for each in family(ended)] == [6, 1]


def test_what_is_too_large_for_an_input_stays_where_it_is() -> None:
    model = Model(lambda turn, messages: says("done") if turn == 2 else calls(("act", {})))
    agent = Agent(model.model, name="long")

    @agent.tool_plain(metadata={"refold": CallOptions(effect="pure")})
    def act() -> str:
        return "x" * 300_000

    app = App("long")
    durable(app, agent, requests=1)
    ended = run(app, "long", prompt="go")

    assert ended.value == "done"
    assert [sum(call.tool.endswith("model.request") for call in each.calls) for each in family(ended)] == [1, 2]


@pytest.mark.parametrize("requests", [0, -1, True, "3"])
def test_a_bound_that_is_none_is_refused(requests: Any) -> None:
    with pytest.raises(UsageError, match="requests="):
        durable(App("long"), Agent(Model(talk).model, name="long"), requests=requests)


def test_what_a_request_says_of_so_far_counts_nothing() -> None:
    app, model, told = long(99, usage_limits=UsageLimits(request_limit=3))
    made_up = {"usage": {"requests": -100}, "conversation_id": "made up"}

    ended = go(app, so_far=made_up)

    assert ended.failure is not None
    assert (ended.failure.code, len(model.asked)) == ("UsageLimitExceeded", 3)
    assert "made up" not in [conversation for *_, conversation in told]
