"""The same history leads the same agent to the same place: in another process, at another time, at every cut."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.usage import RunUsage

from refold import App, Context
from refold.contrib.pydantic_ai import conversation, durable
from refold.core.errors import NonDeterminismError
from refold.core.wire import conversation as wire_conversation
from refold.testing import run
from tests.contrib import fifty
from tests.contrib.thinking import calls, says, scripted, shop

ROOT = Path(__file__).parents[2]


def test_fresh_processes_with_other_hash_seeds_and_no_network_come_to_the_same_place_at_every_cut(
    tmp_path: Path,
) -> None:
    history = tmp_path / "history.json"
    ended = fifty.recorded(history)
    assert len(ended.state.steps) >= fifty.STEPS - 10

    def again(seed: str, every: int) -> None:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-m", "tests.contrib.fifty", str(history), str(every)]
        found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr[-3_000:]

    again("1", every=1)
    again("31337", every=9)


def asked_at(moment: datetime) -> list[ModelMessage]:
    return [ModelRequest([UserPromptPart("hello", timestamp=moment)], timestamp=moment, run_id=str(moment))]


def digest_of(messages: list[ModelMessage]) -> list[bytes]:
    return conversation.Conversations()._digests("", messages, {})


def test_what_the_framework_draws_is_in_neither_arguments_nor_digest() -> None:
    early, late = (asked_at(datetime(year, 1, 1, tzinfo=UTC)) for year in (2020, 2030))

    assert digest_of(early) == digest_of(late)
    assert [conversation.dump_message(each) for each in early] == [conversation.dump_message(each) for each in late]


def test_a_timestamp_in_the_digest_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_conversation, "_DRAWN", ("run_id", "conversation_id"))

    with pytest.raises(AssertionError):
        test_what_the_framework_draws_is_in_neither_arguments_nor_digest()


def test_an_agent_that_says_something_else_by_now_is_seen() -> None:
    app, _, _ = shop(scripted(calls(("price", {"item": "egg"})), says("3")))
    ended = run(app, "shop", prompt="an egg", deps="Ada")
    other, agent, _ = shop(scripted(says("3")))
    agent.instructions(lambda: "Sell more.")
    ended.app = other

    with pytest.raises(NonDeterminismError, match="step 1"):
        ended.check()


def test_usage_of_an_agent_in_a_tool_is_counted_from_the_log() -> None:
    inner = Agent(scripted(says("five words are said here")).model, name="inner")
    agent, used = Agent(scripted(calls(("ask", {})), says("done")).model, name="outer"), list[RunUsage]()

    @agent.tool
    async def ask(ctx: RunContext[None]) -> str:
        """Asks another agent."""
        return (await inner.run("?", usage=ctx.usage)).output

    app = App("delegating")
    durable(app, agent)

    @app.agent
    async def counted(ctx: Context) -> list[int]:
        usage = (await agent.run("go")).usage
        used.append(usage)
        return [usage.requests, usage.tool_calls]

    ended = run(app, "counted")

    assert ended.value == [3, 1]
    assert len(used) > 1
    assert all(each == used[0] for each in used)
    assert ended.calls[1].result["usage"]["requests"] == 1
