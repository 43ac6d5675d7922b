"""An agent of pydantic-ai as a conversation that lives on: each update is a prompt, its answer the output."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart

from refold import App
from refold.contrib.pydantic_ai import CallOptions, durable, idempotency_key
from refold.contrib.pydantic_ai.entry import CARRIED_BYTES, MOST_CARRIED
from refold.core.events import Failure
from refold.sdk.context import LONG_BYTES
from refold.testing import AgentRun, start
from tests.contrib.thinking import Model, calls, says


class Deps(BaseModel):
    tenant: str


def prompts(messages: list[ModelMessage]) -> list[str]:
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, UserPromptPart)]


def talk(turn: int, messages: list[ModelMessage]) -> ModelResponse:
    said = prompts(messages)
    if said[-1] == "fail":
        raise ValueError("no model")
    if said[-1].startswith("act") and isinstance(messages[-1].parts[0], UserPromptPart):
        return calls(("act", {"what": said[-1]}))
    return says(f"{len(said)}: {said[-1][:20]}")


def chatting() -> tuple[App, Model, list[str]]:
    model, acted = Model(talk), list[str]()
    agent = Agent(model.model, name="chat", deps_type=Deps)

    @agent.tool(metadata={"refold": CallOptions(effect="keyed")})
    def act(ctx: RunContext[Deps], what: str) -> str:
        idempotency_key()
        acted.append(f"{ctx.deps.tenant} {what}")
        return "done"

    app = App("chat")
    durable(app, agent, sessions=True)
    return app, model, acted


def say(run: AgentRun, text: Any, number: str) -> Any:
    run.latest.signal("message", text, signal_id=number)
    run.finish()
    return next(each.answers[number] for each in run.family if number in each.answers)


def test_each_message_is_answered_in_one_conversation() -> None:
    app, _, acted = chatting()
    run = start(app, "chat", deps={"tenant": "acme"})

    answers = [say(run, text, f"m-{n}") for n, text in enumerate(["hello", "act now", "thanks"])]

    assert answers == ["1: hello", "2: act now", "3: thanks"]
    assert acted == ["acme act now"]
    assert run.status == "suspended"


def test_a_failure_is_the_answer_and_the_conversation_goes_on() -> None:
    app, _, _ = chatting()
    run = start(app, "chat", deps={"tenant": "acme"})

    failed = say(run, "fail", "m-0")
    wrong = say(run, {"no": "prompt"}, "m-1")

    assert isinstance(failed, Failure)
    assert isinstance(wrong, Failure)
    assert say(run, "hello", "m-2") == "1: hello"


@pytest.mark.parametrize("boundary", range(3))
def test_a_crash_between_two_messages_changes_nothing(boundary: int) -> None:
    app, model, _ = chatting()
    run = start(app, "chat", deps={"tenant": "acme"})

    for n in range(3):
        if n == boundary:
            run.take_over()
        assert say(run, f"text {n}", f"m-{n}") == f"{n + 1}: text {n}"

    assert len(model.asked) == 3


def test_a_long_conversation_is_carried_to_the_next_generation() -> None:
    app, model, _ = chatting()
    run = start(app, "chat", deps={"tenant": "acme"})
    size = 40_000

    many = 0
    while run.latest is run:
        many += 1
        say(run, f"{many} " + "x" * size, f"m-{many}")
    last = say(run, "hello", "last")

    assert many * size > LONG_BYTES / 8
    kept = prompts(model.asked[-1])
    assert len(kept) == 2  # the newest that fits, and the new one
    assert kept[0].startswith(f"{many} x")
    assert last == "2: hello"
    assert MOST_CARRIED
    assert size < CARRIED_BYTES
