"""People decide on calls of agents of pydantic-ai: one question for a call, however it came to need one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDefinition
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset

from refold import App, UsageError
from refold.contrib.pydantic_ai import CallOptions, durable, idempotency_key
from refold.core.events import ApprovalRequested
from refold.core.wire import canonical
from refold.testing import AgentRun, answer, crash_matrix, edit, run, start
from tests.contrib.thinking import Model, calls, says, scripted

CHARGE = "till__function_toolset__<agent>.call_tool:charge"
REST = {"name": "all else", "when": "!('money' in tool.tags)", "allow": True}
ASKS = {
    "rules": [REST, {"name": "money", "when": "'money' in tool.tags", "require": {"approvers": ["ada"]}}],
    "fallback": {"approvers": ["ada"]},
}
"""Who asks has no name that is Ada's."""

Asks = dict[str, Any]


def charging(**more: Any) -> Model:
    return scripted(calls(("charge", {"amount": 50, **more})), says("done"))


def till(model: Model, *, asks: bool = False, raises: bool = False, **more: Any) -> tuple[App, list[Any]]:
    """An app with an agent that charges: what its tool did, and whether it was told of an approval."""
    agent, did = Agent(model.model, name="till", **more), list[Any]()

    @agent.tool(requires_approval=asks, metadata={"refold": CallOptions(effect="keyed", tags=("money",))})
    def charge(ctx: RunContext[None], amount: int) -> str:
        if raises and not ctx.tool_call_approved:
            raise ApprovalRequired
        did.append((amount, ctx.tool_call_approved))
        idempotency_key()
        return f"charged {amount}"

    app = App("till")
    durable(app, agent)
    return app, did


def asked(ended: AgentRun) -> list[ApprovalRequested]:
    return [event for event in ended.events if isinstance(event, ApprovalRequested)]


def heard(model: Model) -> Any:
    """What the model is told of its call, at last."""
    return model.asked[-1][-1].parts[0]


# One question for a call, however it came to need one.


@pytest.mark.parametrize("policy", [None, ASKS])
@pytest.mark.parametrize(("asks", "raises"), [(True, False), (False, True), (True, True), (False, False)])
def test_a_call_is_asked_about_once(policy: Asks | None, asks: bool, raises: bool) -> None:
    needed = bool(policy) or asks or raises
    app, did = till(charging(), asks=asks, raises=raises)

    ended = run(app, "till", policy=policy, prompt="charge me")

    assert ended.value == "done"
    assert len(asked(ended)) == needed
    assert did == [(50, needed)]


def test_a_toolset_that_requires_approval_asks_once() -> None:
    tools, did = FunctionToolset[None](id="tools"), list[int]()

    @tools.tool_plain
    def charge(amount: int) -> None:
        did.append(amount)

    app = App("till")
    durable(app, Agent(charging().model, name="till", toolsets=[tools.approval_required()]))

    ended = run(app, "till", prompt="charge me")

    assert ended.value == "done"
    assert len(asked(ended)) == 1
    assert did == [50]


@pytest.mark.parametrize("raises", [False, True])
def test_a_rejection_reaches_the_model_as_a_message_and_nothing_is_charged(raises: bool) -> None:
    model = charging()
    app, did = till(model, asks=not raises, raises=raises)

    ended = run(app, "till", decisions={CHARGE: "reject"}, prompt="charge me")

    assert ended.value == "done"
    assert did == []
    assert isinstance(told := heard(model), ToolReturnPart)
    assert (told.outcome, told.content) == ("denied", "tester-1 said no")


def test_what_a_rule_denies_and_what_nobody_decides_reach_the_model_as_messages() -> None:
    denies = {
        "rules": [
            REST,
            {"name": "broke", "when": "'money' in tool.tags && args.amount > 10", "deny": "too much"},
        ]
    }
    for options, words in [
        ({"policy": denies}, "too much"),
        (
            {
                "decisions": {CHARGE: "expire"},
                "policy": {"fallback": {"approvers": ["*"], "expires": "1h"}, "rules": [REST]},
            },
            "nobody decided in time",
        ),
    ]:
        model = charging()
        app, did = till(model)

        assert run(app, "till", prompt="charge me", **options).value == "done"
        assert (did, heard(model).outcome, heard(model).content) == ([], "denied", words)


def test_an_answer_of_people_is_the_result_that_the_model_gets() -> None:
    model = charging()
    app, did = till(model, asks=True)

    ended = run(app, "till", decisions={CHARGE: answer("paid in cash")}, prompt="charge me")

    assert (ended.value, did, heard(model).content) == ("done", [], "paid in cash")


def test_an_edit_reaches_the_model_as_what_it_is() -> None:
    model = charging()
    app, did = till(model, asks=True)
    begun = start(app, "till", prompt="charge me")
    begun.settle(1)
    args = canonical.parse(begun.state.call(2).args)
    begun._decisions[CHARGE] = edit(**{**args, "amount": 5})

    ended = begun.finish()

    assert (ended.value, did) == ("done", [(5, True)])
    returned, told = model.asked[-1][-1].parts
    assert isinstance(returned, ToolReturnPart)
    assert returned.content == "charged 5"
    assert isinstance(told, UserPromptPart)
    assert told.content == ['Before this call was made tester-1 changed its arguments to: {"amount":5}']


def test_an_edit_has_to_fit_the_function() -> None:
    app, _ = till(charging(), asks=True)

    with pytest.raises(UsageError, match='amount: "much" is not of type "integer"'):
        run(app, "till", decisions={CHARGE: edit(amount="much")}, prompt="charge me")


def test_wherever_it_is_killed_people_are_asked_once_and_it_is_charged_once() -> None:
    app, _ = till(charging(), raises=True)

    crash_matrix(app, "till", {"prompt": "charge me"})


# Questions, and what is done elsewhere.


def questions(model: Model) -> App:
    agent = Agent(
        model.model,
        name="desk",
        toolsets=[ExternalToolset([ToolDefinition(name="ship", parameters_json_schema={"type": "object"})], id="far")],
    )

    @agent.tool_plain
    def ask(question: str) -> str:
        raise CallDeferred(kind="question", metadata={"urgent": True})

    app = App("desk")
    durable(app, agent)
    return app


def test_people_answer_questions_and_external_calls() -> None:
    model = scripted(calls(("ask", {"question": "which?"}), ("ship", {"item": "egg"})), says("done"))
    app = questions(model)
    answers = {"desk__deferred.question": answer("the blue one"), "desk__deferred.external": answer({"parcel": 7})}

    ended = run(app, "desk", decisions=answers, prompt="an egg")

    assert ended.value == "done"
    assert {call.tool: call.args for call in ended.calls if call.tool in answers} == {
        "desk__deferred.question": {"tool": "ask", "args": {"question": "which?"}, "metadata": {"urgent": True}},
        "desk__deferred.external": {"tool": "ship", "args": {"item": "egg"}},
    }
    assert [part.content for part in model.asked[-1][-1].parts] == ["the blue one", {"parcel": 7}]


@pytest.mark.parametrize(
    ("says_what", "words"),
    [("reject", "tester-1 said no"), ("approve", "it was approved, and has no answer")],
)
def test_a_question_without_an_answer_reaches_the_model_as_a_failure(says_what: Any, words: str) -> None:
    model = scripted(calls(("ask", {"question": "which?"})), says("done"))

    ended = run(questions(model), "desk", decisions={"desk__deferred.question": says_what}, prompt="an egg")

    assert ended.value == "done"
    assert heard(model).outcome == "failed"
    assert words in heard(model).content


# Nobody but people says yes.


def yes(ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults:
    return requests.build_results(approve_all=True)


def test_a_handler_that_approves_everything_approves_nothing() -> None:
    app, did = till(charging(), asks=True, capabilities=[HandleDeferredToolCalls(yes)])

    assert run(app, "till", decisions={CHARGE: "reject"}, prompt="charge me").value == "done"
    assert did == []


@pytest.mark.parametrize("word", ["tool_call_approved", "$approved", "$run"])
def test_a_model_that_calls_its_call_approved_is_not_believed(word: str) -> None:
    app, did = till(charging(**{word: True}), asks=False, raises=True)

    run(app, "till", decisions={CHARGE: "reject"}, prompt="charge me")

    assert did == []


def forged(order: Any) -> Any:
    """A planner that lies: what the framework calls approved, without anybody's decision."""
    args = {**canonical.parse(order.args), "$approved": True}
    return replace(order, args=canonical.dumps(args), decision="")


def overridden(order: Any) -> Any:
    return replace(order, args=canonical.dumps({**canonical.parse(order.args), "amount": 5000}))


def undecided(order: Any) -> Any:
    args = canonical.parse(order.args)
    args["$run"]["tool_call_approved"] = True
    args.pop("$approved", None)
    return replace(order, args=canonical.dumps(args), decision="")


@pytest.mark.parametrize("lie", [forged, overridden, undecided])
@pytest.mark.parametrize(("asks", "raises"), [(True, False), (False, True)])
def test_an_executor_acts_only_on_what_people_have_decided(lie: Callable[[Any], Any], asks: bool, raises: bool) -> None:
    app, did = till(charging(), asks=asks, raises=raises)
    begun = start(app, "till", prompt="charge me")
    honest = begun.executors.attempt
    begun.executors.attempt = lambda order: honest(lie(order) if order.tool == CHARGE else order)  # type: ignore[assignment, method-assign]

    begun.finish()

    assert did == []


def test_a_tool_that_runs_in_the_planner_cannot_require_an_approval() -> None:
    agent = Agent(charging().model, name="till")

    @agent.tool_plain(requires_approval=True, metadata={"refold": False})
    async def charge(amount: int) -> str:
        return "charged"

    with pytest.raises(UsageError, match="tool charge of agent till requires an approval"):
        durable(App("till"), agent)


def test_outside_a_run_other_handlers_decide_as_ever() -> None:
    model = charging()
    agent = Agent(model.model, name="till", capabilities=[HandleDeferredToolCalls(yes)])

    @agent.tool_plain(requires_approval=True)
    def charge(amount: int) -> str:
        return "charged"

    durable(App("till"), agent)

    assert agent.run_sync("charge me").output == "done"
    assert parts(model.asked[-1]) == ["charged"]


def parts(messages: list[ModelMessage]) -> list[Any]:
    return [part.content for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
