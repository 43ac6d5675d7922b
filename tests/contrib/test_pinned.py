"""A run of an agent of pydantic-ai keeps its model, settings, prompt and tools to its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

from refold import App, TransientError
from refold.contrib.pydantic_ai import CallOptions, RefoldDurability, durable
from refold.core.messages import ToolRequest
from refold.core.wire import canonical
from refold.testing import run
from tests.contrib.thinking import calls, says, scripted
from tests.recovery.rig import Rig


def clerk(model: str, **options: Any) -> Agent[None, str]:
    """An agent that looks something up and then tells which model it has asked."""
    script = scripted(calls(("look", {})), says(model))
    agent = Agent(FunctionModel(script.answer, model_name=model), name="clerk", **options)

    @agent.tool_plain(metadata={"refold": CallOptions(effect="pure")})
    def look() -> str:
        return "seen"

    return agent


def app(*models: str, versions: tuple[str, ...] = ("",), requests: int = 200) -> App:
    """An app that has the agent with each of these models, as versions of it."""
    made = App("shop")
    for model, version in zip(models, versions, strict=True):
        options = RefoldDurability[None](model=CallOptions(pool="default"))
        durable(made, clerk(model), options, version=version, requests=requests)
    return made


def act(code: App, asked: ToolRequest) -> str:
    """What an executor with this app makes of an order."""
    tool, before = code.tools[asked.tool], {each.step: (each.args, each.result) for each in asked.earlier}
    body: Any = tool.run_on(lambda: before, asked.args, idempotency_key=asked.key)
    return tool.result_json(asyncio.run(body))


def finish(rig: Rig, code: App, *, calls: int = 9) -> Any:
    """Has executors with this app make so many calls, and returns the result of the run if it is over."""
    for _ in range(calls):
        for asked in rig.asked("r"):
            rig.finish_one(asked, result=act(code, asked))
        rig.run()
    end = getattr(rig.state("r").end, "result", None)
    return None if end is None else canonical.parse(end)


def begun(code: App) -> Rig:
    """A run that has asked its model once, and waits for its tool."""
    rig = Rig(code)
    rig.start("r", "clerk", prompt="look")
    rig.run()
    finish(rig, code, calls=1)
    return rig


def test_a_run_stalls_where_its_model_is_another_one_and_goes_on_where_it_is_back() -> None:
    before, after = app("small"), app("large")
    rig = begun(before)

    rig.deploy(after)
    assert finish(rig, after) is None
    held = rig.hold("r")
    assert held is not None
    assert (held.reason, "arguments of clerk__model.request were changed" in held.message) == ("non_determinism", True)

    rig.deploy(before)
    assert finish(rig, before) == "small"


def test_two_versions_of_an_agent_live_side_by_side_each_with_its_model() -> None:
    old, both = app("small", versions=("1",)), app("small", "large", versions=("1", "2"))
    rig = begun(old)

    rig.deploy(both)

    assert finish(rig, both) == "small"
    rig.start("s", "clerk", prompt="look")
    rig.run()
    [asked] = rig.asked("s")
    assert canonical.parse(asked.args)["asked"].endswith("large")
    assert not old.tools.keys() & (both.tools.keys() - old.tools.keys())


def test_a_long_conversation_of_an_older_version_stays_in_its_run_and_with_its_model() -> None:
    old, both = app("small", versions=("1",), requests=1), app("small", "large", versions=("1", "2"), requests=1)
    rig = begun(old)

    rig.deploy(both)

    assert finish(rig, both, calls=1) is None
    [asked] = rig.asked()
    assert (asked.run_id, asked.tool) == ("r", "clerk.1__model.request")
    rig.deploy(old)  # where it is the newest again, what it has asked itself stays
    assert finish(rig, old) == "small"


def test_an_executor_with_another_model_does_not_ask_it() -> None:
    rig = Rig(app("small"))
    rig.start("r", "clerk", prompt="look")
    rig.run()
    [asked] = rig.asked("r")

    with pytest.raises(TransientError, match="the run asks .*small, and this executor would ask .*large"):
        act(app("large"), asked)


def more() -> str:
    """Looks for more."""
    return "more"


@pytest.mark.parametrize(
    ("model", "options", "parts"),
    [
        ("small", {}, set()),
        ("large", {}, {"model", "models"}),
        ("small", {"model_settings": {"temperature": 0.5}}, {"settings"}),
        ("small", {"instructions": "Be brief."}, {"prompt"}),
        ("small", {"output_type": bool}, {"prompt"}),
        ("small", {"tools": [more]}, {"functions"}),
    ],
)
def test_what_a_model_is_asked_with_is_in_version_and_manifest(
    model: str, options: dict[str, Any], parts: set[str]
) -> None:
    def made(agent: Agent[None, Any]) -> tuple[str, dict[str, str]]:
        code = App("shop")
        return durable(code, agent).version, code.manifest("clerk")

    version, manifest = made(clerk("small"))
    other, changed = made(clerk(model, **options))

    assert (version != other) == bool(parts)
    assert {name for name in manifest if manifest[name] != changed[name]} - {"code", "tools"} == parts


def test_a_models_own_settings_belong_to_what_is_asked() -> None:
    def asked(**options: Any) -> str:
        code = App("shop")
        durable(code, Agent(TestModel(**options), name="clerk"))
        [call] = run(code, "clerk", prompt="x").calls
        assert call.args["asked"] == code.manifest("clerk")["model"]
        return str(call.args["asked"])

    assert asked() == "test:test"
    assert asked(settings={"max_tokens": 5}) not in (asked(), asked(settings={"max_tokens": 6}))
