"""Models that answer what no model should: it costs their run at most, and says nothing that is not to be said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from refold import App, Retry
from refold.contrib.pydantic_ai import CallOptions, RefoldDurability, durable
from refold.core.events import AttemptFailed, Entry
from refold.core.wire import codec
from refold.testing import AgentRun, run
from tests.contrib.thinking import Model, says
from tests.model.server import Answer, busy, one_by_one, serving
from tests.model.server import says as answers

KEY = "sk-live-0123456789abcdef"


def shop(asked: Any, **options: Any) -> App:
    agent = Agent(asked, name="shop")

    @agent.tool_plain(metadata={"refold": CallOptions(effect="pure")})
    def sell(**more: Any) -> str:
        """Sells what it is told."""
        return f"sold {sorted(more)} {more.get('n', '')}".strip()

    app = App("shop")
    durable(app, agent, RefoldDurability(**options))
    return app


def wants(args: Any) -> Model:
    """A model that wants a call with these arguments, and then says what it has heard."""

    def script(turn: int, messages: list[ModelMessage]) -> ModelResponse:
        if turn == 0:
            return ModelResponse(parts=[ToolCallPart("sell", args, tool_call_id="c-1")])
        [heard] = messages[-1].parts
        return says(f"{heard.part_kind}: {getattr(heard, 'content', '')}")

    return Model(script)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ('{"n": NaN}', "nan"),
        ('{"n": ' + "9" * 4_301 + "}", "number out of range"),
        ('{"n": ' + "[" * 80 + "]" * 80 + "}", "64 levels"),
        ({"$run": {"deps": "mine"}}, "$run"),
    ],
)
def test_arguments_that_no_record_can_hold_go_back_to_the_model(args: Any, word: str) -> None:
    ended = run(shop(wants(args).model), "shop", prompt="sell")

    assert word in ended.value
    assert [call.tool for call in ended.calls] == ["shop__model.request"] * 2


def test_an_integer_of_many_digits_arrives_as_the_model_wrote_it() -> None:
    ended = run(shop(wants('{"n": 123456789012345678901234567890}').model), "shop", prompt="sell")

    assert ended.value == "tool-return: sold ['n'] 123456789012345678901234567890"


def test_half_a_character_costs_no_answer() -> None:
    async def cut(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("yes \ud83d")])

    assert run(shop(FunctionModel(cut)), "shop", prompt="hello").value.startswith("yes \ufffd")


def behind_http(url: str) -> OpenAIChatModel:
    return OpenAIChatModel("made-up", provider=OpenAIProvider(base_url=url, api_key=KEY))


@pytest.mark.parametrize(("after", "waited_ms"), [("31536000", 86_400_000), ("inf", 0)])
def test_no_header_has_a_run_wait_for_years(after: str, waited_ms: int) -> None:
    with serving(one_by_one(busy(after=after), answers("hello"))) as server:
        ended = run(shop(behind_http(server.url)), "shop", prompt="hello")

    assert ended.value == "hello"
    entries = [codec.decode(Entry, value) for _, value in ended.records]
    [waited] = [
        event.retry_ms - entry.at_ms for entry in entries for event in entry.events if isinstance(event, AttemptFailed)
    ]
    assert waited == waited_ms or (not waited_ms and 0 < waited < 2_000)


def stored(ended: AgentRun) -> str:
    return b"".join(value for _, value in ended.records).decode(errors="replace")


def test_no_password_of_an_address_is_in_the_log() -> None:
    with serving(one_by_one(answers("hello"))) as server:
        url = server.url.replace("http://", "http://me:hunter2@") + "?key=hunter2"
        ended = run(shop(behind_http(url)), "shop", prompt="hello")

    assert "provider_url" in stored(ended)
    assert "hunter2" not in stored(ended)


def test_no_key_is_in_the_log_that_a_provider_repeats() -> None:
    once = CallOptions(retry=Retry(attempts=1))
    with serving(one_by_one(Answer(status=401, text=f"Incorrect API key provided: {KEY}."))) as server:
        ended = run(shop(behind_http(server.url), model=once), "shop", prompt="hello")

    assert ended.failure is not None
    assert "Incorrect API key provided: [redacted]" in json.dumps(ended.failure.message)
    assert KEY not in stored(ended)
