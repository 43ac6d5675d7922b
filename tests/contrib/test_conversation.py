"""A conversation takes as much of the log as there is said in it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.usage import UsageLimits

from refold import App, Context
from refold.contrib.pydantic_ai import CallOptions, conversation, durable
from refold.core.errors import TerminalError
from refold.core.events import CallProposed
from refold.core.messages import ToolRequest
from refold.core.planning.commands import request
from refold.core.run.building import complete
from refold.core.wire import codec
from refold.core.wire.conversation import whole_request
from refold.testing import AgentRun, Boundary, run
from tests.contrib.thinking import Model, calls, says, scripted

NOWHERE = Boundary("planner", -1)
"""Nothing is killed, and fresh code runs along the history at its end only."""

CALLS, CHARACTERS = 100, 8_360
"""A hundred calls that grow to 209,000 tokens of four characters."""


def reader(turns: int, characters: int) -> tuple[Agent[None, str], Model]:
    """An agent that reads page after page, and whose tools return them."""
    model = Model(lambda turn, messages: calls(("page", {"n": turn})) if turn < turns else says("read"))
    agent = Agent(model.model, name="reader", instructions="Read all pages. " * 20)

    @agent.tool_plain(metadata={"refold": CallOptions(effect="pure")})
    def page(n: int) -> str:
        """A page."""
        return f"page {n} ".ljust(characters, "x")

    return agent, model


def readers(turns: int, characters: int) -> tuple[App, Model]:
    """An app with that agent."""
    agent, model = reader(turns, characters)
    app = App("readers")
    durable(app, agent, usage_limits=UsageLimits(request_limit=None))
    return app, model


def plain(messages: list[ModelMessage]) -> Any:
    return [conversation.dump_message(each) for each in messages]


def stored(ended: AgentRun) -> int:
    return sum(len(value) for _, value in ended.records)


def test_what_is_stored_grows_with_what_is_new_and_not_with_its_square() -> None:
    app, _ = readers(CALLS, CHARACTERS)

    ended = AgentRun(app, "reader", {"prompt": "read"}, boundary=NOWHERE).finish()

    assert ended.value == "read"
    assert stored(ended) < 1.3 * CALLS * CHARACTERS


def test_a_model_gets_the_very_messages_that_it_would_get_without_a_log() -> None:
    app, logged = readers(12, 500)
    agent, direct = reader(12, 500)

    run(app, "reader", prompt="read")
    agent.run_sync("read")

    assert [plain(each) for each in logged.asked] == [plain(each) for each in direct.asked]


def test_what_is_told_once_is_not_told_again() -> None:
    app, _ = readers(3, 500)

    first, *others = [call.args for call in run(app, "reader", prompt="read").calls if "model.request" in call.tool]

    assert {"parameters", "settings"} <= first.keys()
    for number, each in enumerate(others):
        assert each.keys() & {"parameters", "settings"} == set()
        assert each["on"] == 1 + 2 * number
        assert (
            each["messages"][0] == {"$said": each["on"], "with": {"model_id": ":script"}}
            or "$said" in each["messages"][0]
        )
        assert each["messages"][1]["parts"][0]["$result"] == each["on"] + 1
        assert each["$run"].keys() == {"run_step", "usage"}


def test_a_conversation_that_goes_on_in_another_run_of_the_agent_is_not_told_again() -> None:
    agent, model = reader(1, 2_000)
    app = App("readers")
    durable(app, agent)

    @app.agent
    async def chat(ctx: Context) -> int:
        first = await agent.run("read")
        second = await agent.run("and?", message_history=first.all_messages())
        return len(second.all_messages())

    ended = run(app, "chat")

    last = ended.calls[-1].args
    assert ended.value == 6
    assert last["on"] == 3
    assert len(json.dumps(last)) < 1_000
    assert len(model.asked[-1]) == 5


def test_a_history_that_a_processor_rewrites_is_another_one() -> None:
    model = scripted(calls(("page", {})), calls(("page", {})), says("done"))

    def forget(messages: list[ModelMessage]) -> list[ModelMessage]:
        return [ModelRequest([UserPromptPart("short")]), *messages[1:]] if len(messages) > 3 else messages

    agent = Agent(model.model, name="reader", capabilities=[ProcessHistory(forget)])

    @agent.tool_plain(metadata={"refold": CallOptions(effect="pure")})
    def page() -> str:
        """A page."""
        return "x" * 300

    app = App("readers")
    durable(app, agent)
    asked = [call.args for call in run(app, "reader", prompt="long").calls if "model.request" in call.tool]

    assert ["on" in each for each in asked] == [False, True, False]
    assert plain(model.asked[2])[0]["parts"][0]["content"] == "short"


def test_a_message_that_is_changed_in_its_place_is_told_again() -> None:
    model = scripted(calls(("page", {})), says("done"))

    def correct(messages: list[ModelMessage]) -> list[ModelMessage]:
        if len(messages) > 1:
            part = messages[0].parts[0]
            assert isinstance(part, UserPromptPart)
            part.content = "corrected"
        return messages

    agent = Agent(model.model, name="reader", capabilities=[ProcessHistory(correct)])

    @agent.tool_plain(metadata={"refold": CallOptions(effect="pure")})
    def page() -> str:
        """A page."""
        return "x"

    app = App("readers")
    durable(app, agent)
    run(app, "reader", prompt="wrong")

    assert plain(model.asked[1])[0]["parts"][0]["content"] == "corrected"


def test_every_call_of_a_tool_carries_its_whole_context_for_rules_and_people_to_see() -> None:
    model = scripted(calls(("peek", {})), calls(("peek", {})), calls(("peek", {})), says("done"))
    agent, seen = Agent(model.model, name="reader", deps_type=dict[str, str]), list[int]()

    @agent.tool(metadata={"refold": CallOptions(effect="pure")})
    def peek(ctx: RunContext[dict[str, str]]) -> int:
        """Looks at them."""
        seen.append(len(ctx.deps["text"]))
        return 1

    app = App("readers")
    durable(app, agent)
    ended = run(app, "reader", prompt="look", deps={"text": "x" * 20_000})

    assert seen == [20_000] * 3
    proposed = [event for event in ended.events if isinstance(event, CallProposed)]
    calls_of_tools = [each for each in proposed if each.tool.endswith(":peek")]
    assert [len(each.args) > 20_000 for each in calls_of_tools] == [True] * 3
    requests = [each for each in proposed if each.tool.endswith("model.request")]
    assert [len(each.args) > 20_000 for each in requests].count(True) == 1


@pytest.mark.parametrize("what", ["args", "result"])
def test_what_was_altered_on_its_way_is_not_sent_to_a_model(what: str) -> None:
    app, _ = readers(2, 500)
    ended = run(app, "reader", prompt="read")
    asked = next(n for n, call in enumerate(ended.state.steps, 1) if "$said" in getattr(call, "args", ""))
    order = request(ended.state, asked, 1, issued=0, at_ms=0).message
    assert isinstance(order, ToolRequest)
    order = complete(ended.state, order)
    order = codec.decode(type(order), codec.encode(order))
    earlier = {each.step: (each.args, each.result) for each in order.earlier}
    first = order.earlier[0]
    altered = getattr(first, what).replace("page", "rage").replace("Read", "Rend")
    first = replace(first, **{what: altered})

    whole_request(json.loads(order.args), earlier)
    with pytest.raises(TerminalError, match="the request is not what its arguments say"):
        whole_request(json.loads(order.args), {**earlier, first.step: (first.args, first.result)})
    with pytest.raises(TerminalError, match="KeyError"):
        whole_request(json.loads(order.args), {})
