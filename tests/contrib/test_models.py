"""Models behind HTTP that are busy, fail, stall and talk nonsense, asked by real executors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import ModelFallback
from pydantic_ai.exceptions import (
    FallbackExceptionGroup,
    ModelHTTPError,
    ModelRateLimitError,
    ModelRequestRejectedError,
)
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from refold import App, Context, Retry
from refold.contrib.pydantic_ai import CallOptions, RefoldDurability, durable
from refold.contrib.pydantic_ai.results import as_failure, as_raised
from refold.core.errors import CallFailed, TerminalError, TransientError
from refold.core.events import AttemptFailed, Entry
from refold.core.wire import codec
from refold.testing import AgentRun, run
from tests.model.server import Answer, Asked, ModelServer, busy, in_turn, one_by_one, says, serving, wants


def model_of(server: ModelServer, name: str = "made-up") -> OpenAIChatModel:
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=server.url, api_key="none"))


def shop_of(server: ModelServer, capabilities: Any = (), **options: Any) -> tuple[App, Agent[None, str]]:
    agent = Agent(model_of(server), name="shop", capabilities=list(capabilities))

    @agent.tool_plain(metadata={"refold": CallOptions(effect="pure")})
    def price(item: str) -> int:
        """What an item costs."""
        return len(item)

    app = App("shop")
    durable(app, agent, RefoldDurability(**options), usage_limits=UsageLimits(request_limit=5))
    return app, agent


def failures(ended: AgentRun) -> list[tuple[str, int]]:
    """Attempts that failed, and how long the run waited after each."""
    entries = [codec.decode(Entry, value) for _, value in ended.records]
    failed = [(entry.at_ms, event) for entry in entries for event in entry.events if isinstance(event, AttemptFailed)]
    return [(event.failure.code, event.retry_ms - at_ms) for at_ms, event in failed]


def test_a_model_behind_http_is_asked_once_for_each_answer() -> None:
    with serving(in_turn(wants("price", {"item": "egg"}), says("3"))) as server:
        ended = run(shop_of(server)[0], "shop", prompt="an egg")

    assert ended.value == "3"
    assert len(server.asked) == 2
    assert ended.calls[0].result["usage"]["model"] == "openai:made-up"


def test_a_busy_model_is_asked_again_when_it_has_said_so_and_not_by_its_provider() -> None:
    with serving(one_by_one(busy(after="7"), busy(status=500), busy(status=503), says("hello"))) as server:
        ended = run(shop_of(server)[0], "shop", prompt="hello")

    assert ended.value == "hello"
    assert len(server.asked) == 4
    found = failures(ended)
    assert [code for code, _ in found] == ["ModelRateLimitError", "ModelServerError", "ModelUnavailableError"]
    assert found[0][1] == 7_000


def test_what_is_hopeless_is_asked_once_and_raised_as_what_it_is() -> None:
    with serving(lambda asked, count: Answer(status=401)) as server:
        ended = run(shop_of(server)[0], "shop", prompt="hello")

    assert len(server.asked) == 1
    assert ended.failure is not None
    assert ended.failure.code == "ModelAuthenticationError"


def test_a_code_that_reacts_gets_the_error_of_the_framework() -> None:
    with serving(lambda asked, count: busy(after="3")) as server:
        app, agent = shop_of(server, model=CallOptions(retry=Retry(attempts=2, base=timedelta())))

        @app.agent
        async def patient(ctx: Context) -> list[Any]:
            try:
                await agent.run("hello")
            except ModelRateLimitError as error:
                return [getattr(error, "status_code", 0), error.model_name, error.retry_after]
            return []

        ended = run(app, "patient")

    assert ended.value == [429, "made-up", 3.0]
    assert len(server.asked) == 2


def test_a_second_model_is_asked_by_a_call_of_its_own() -> None:
    with serving(lambda asked, count: busy(status=500) if asked["model"] == "made-up" else says("here")) as server:
        once = CallOptions(retry=Retry(attempts=1))
        app, _ = shop_of(server, [ModelFallback(model_of(server, "second"))], model=once)
        ended = run(app, "shop", prompt="hello")

    assert ended.value == "here"
    assert [call.args["model"] for call in ended.calls] == [None, "fallback-1-openai:second"]
    assert [asked["model"] for asked in server.asked] == ["made-up", "second"]


@pytest.mark.parametrize("said", ["{item: egg", '{"item": 3', '["egg"]'])
def test_arguments_that_are_no_json_go_back_to_the_model(said: str) -> None:
    with serving(one_by_one(wants("price", said), wants("price", {"item": "egg"}), says("3"))) as server:
        ended = run(shop_of(server)[0], "shop", prompt="an egg")

    assert ended.value == "3"
    assert [call.result for call in ended.calls if "price" in call.tool] == [3]


def test_an_answer_that_is_cut_off_is_asked_for_again() -> None:
    cut = Answer("hello", cut=True)
    with serving(one_by_one(cut, says("hello"))) as server:
        ended = run(shop_of(server)[0], "shop", prompt="hello")

    assert ended.value == "hello"
    assert len(server.asked) == 2
    assert len(failures(ended)) == 1


def test_a_model_that_stalls_is_given_up_and_asked_again() -> None:
    stall = Answer("late", stalls=True)
    with serving(one_by_one(stall, says("hello"))) as server:
        app, _ = shop_of(server, model=CallOptions(timeout=timedelta(seconds=2)))
        ended = run(app, "shop", prompt="hello")

    assert ended.value == "hello"
    assert failures(ended)[0][0] == "timeout"


def test_a_limit_of_requests_holds_and_counts_what_was_recorded() -> None:
    def for_ever(asked: Asked, count: int) -> Answer:
        return wants("price", {"item": "egg"})

    with serving(for_ever) as server:
        ended = run(shop_of(server)[0], "shop", prompt="an egg")

    assert ended.failure is not None
    assert ended.failure.code == "UsageLimitExceeded"
    assert len(server.asked) == 5


def test_errors_of_several_models_stay_several() -> None:
    group = FallbackExceptionGroup("all failed", [ModelHTTPError(500, "a"), ModelRequestRejectedError("b", "no")])

    failure = as_failure(group)

    assert isinstance(failure, TransientError)
    raised = as_raised(CallFailed("x", detail=failure.fields["detail"]))
    assert isinstance(raised, FallbackExceptionGroup)
    assert [type(each) for each in raised.exceptions] == [ModelHTTPError, ModelRequestRejectedError]


def test_an_error_with_an_endless_body_is_told_without_it() -> None:
    error = ModelHTTPError(400, "m", body={"message": "x" * 100_000})

    failure = as_failure(error)

    assert isinstance(failure, TerminalError)
    assert len(failure.fields["detail"]) < 4_000
    raised = as_raised(CallFailed("x", detail=failure.fields["detail"]))
    assert isinstance(raised, ModelHTTPError)
    assert raised.status_code == 400
