"""Budgets hold over what models of pydantic-ai take: it is reserved before a request goes out."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from refold import App, Budget, Price, UsageError
from refold.contrib.pydantic_ai import CallOptions, RefoldDurability, durable
from refold.contrib.pydantic_ai.conversation import BYTES_A_TOKEN
from refold.core.events import BudgetReached, CallBilled, CallReserved
from refold.testing import crash_matrix, run

PRICES = {"function:dear": Price(input="10", output="100"), "function:cheap": Price(input="0.1", output="1")}


def model(name: str, asked: list[str], rounds: int = 3) -> FunctionModel:
    """One that looks so many times, and then says how often."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(name)
        seen = sum(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
        usage = RequestUsage(input_tokens=1_000 * (seen + 1), output_tokens=100)
        if seen < rounds:
            return ModelResponse(parts=[ToolCallPart("look", {"n": seen}, f"c-{seen}")], usage=usage, model_name=name)
        return ModelResponse(parts=[TextPart(f"{seen} looks")], usage=usage, model_name=name)

    return FunctionModel(answer, model_name=name)


def looking(budget: Budget, asked: list[str], page: str = "x" * 400, **options: Any) -> App:
    """An app whose agent looks at a page, within a budget."""
    app = App("metered", prices=PRICES)
    agent = Agent(model("dear", asked), name="looker", model_settings={"max_tokens": 200})

    @agent.tool_plain(metadata={"refold": CallOptions(effect="pure")})
    async def look(n: int) -> str:
        return f"{n} {page}"

    made: dict[str, Any] = {"models": {"small": model("cheap", asked)}, **options}
    durable(app, agent, RefoldDurability(**made), budget=budget)
    return app


def test_a_request_reserves_what_was_said_before_what_is_new_and_the_longest_answer() -> None:
    asked: list[str] = []

    done = run(looking(Budget(tokens=100_000), asked), "looker", prompt="look")

    assert done.value == "3 looks"
    reserved = [event for event in done.events if isinstance(event, CallReserved)]
    assert len(reserved) == len(asked) == 4
    first, *later = [event.tokens for event in reserved]
    assert first >= 200 + len("look") // 2
    assert all(most > (1_100 * n + 200) and most < 1_000 * n + 2_500 for n, most in enumerate(later, start=1))


def test_money_is_billed_by_the_usage_of_a_response_that_names_no_provider() -> None:
    asked: list[str] = []

    done = run(looking(Budget(usd="5"), asked), "looker", prompt="look")

    billed = [event for event in done.events if isinstance(event, CallBilled)]
    # 1,000 n tokens at $10 a million and 100 at $100 a million.
    assert [event.nano_usd for event in billed] == [1_000_000 * (10 * n + 10) for n in range(1, 5)]


def test_what_is_reserved_counts_bytes_and_not_characters() -> None:
    def reserved(letter: str) -> list[int]:
        done = run(looking(Budget(tokens=100_000), [], page=letter * 1_000), "looker", prompt=letter * 1_000)
        return [event.tokens for event in done.events if isinstance(event, CallReserved)][:2]

    told, named = (many - one for many, one in zip(reserved("漢"), reserved("x"), strict=True))

    assert told == 2 * 1_000 // BYTES_A_TOKEN
    assert named == 2 * 1_000 // BYTES_A_TOKEN


def test_a_request_that_does_not_fit_does_not_go_out() -> None:
    asked: list[str] = []

    done = run(looking(Budget(tokens=3_500), asked), "looker", prompt="look")

    assert done.failure is not None
    assert done.failure.code == "budget_tokens"
    assert 1 <= len(asked) < 4


def test_beyond_the_soft_limit_the_cheaper_model_is_asked() -> None:
    asked: list[str] = []
    budget = Budget(usd="0.20", soft=0.5, then="degrade")

    done = run(looking(budget, asked, cheaper="small"), "looker", prompt="look")

    assert done.value == "3 looks"
    assert asked[0] == "dear"
    assert asked[-1] == "cheap"
    assert sorted(asked, key=["dear", "cheap"].index) == asked, "it never goes back"
    assert sum(isinstance(event, BudgetReached) for event in done.events) == 1


def test_without_a_cheaper_model_the_agent_hears_of_it() -> None:
    done = run(looking(Budget(usd="0.20", soft=0.5, then="degrade"), []), "looker", prompt="look")

    assert done.failure is not None
    assert done.failure.code == "degrade"


def test_a_cheaper_model_that_is_none_of_the_models_is_refused() -> None:
    with pytest.raises(UsageError, match="cheaper='tiny'"):
        looking(Budget(calls=9), [], cheaper="tiny")


def test_an_agent_that_goes_on_with_the_cheaper_model_survives_a_crash_at_every_boundary() -> None:
    budget = Budget(usd="0.20", soft=0.5, then="degrade")

    crash_matrix(looking(budget, [], cheaper="small"), "looker", {"prompt": "look"})
