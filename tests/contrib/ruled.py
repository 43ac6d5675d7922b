"""What the modules of rules share: an app around an agent, and how a run of it has come out."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from refold import App
from refold.contrib.pydantic_ai import CallOptions, durable
from refold.testing import AgentRun
from tests.contrib.thinking import Model

PURE: dict[str, Any] = {"refold": CallOptions(effect="pure")}
PLANNED: dict[str, Any] = {"refold": False}


def agent_of(model: Model | FunctionModel, **more: Any) -> Agent[Any, Any]:
    """The agent `a` with this model."""
    return Agent(model.model if isinstance(model, Model) else model, name="a", **more)


def app_of(agent: Agent[Any, Any], *more: Any, **options: Any) -> App:
    """An app with this agent."""
    app = App("rules")
    durable(app, agent, *more, **options)
    return app


def units(ended: AgentRun) -> list[str]:
    """What the run has asked for, without the agent's name."""
    return [call.tool.partition("__")[2] for call in ended.calls]


def code(ended: AgentRun) -> str:
    """Why the run has failed."""
    assert ended.failure is not None, ended.value
    return ended.failure.code


def words(ended: AgentRun) -> str:
    """What is said of why the run has failed."""
    assert ended.failure is not None, ended.value
    return ended.failure.message


def heard(model: Model) -> list[tuple[Any, str]]:
    """What the model was told last of its calls, and how they came out."""
    return [(part.content, getattr(part, "outcome", "")) for part in model.asked[-1][-1].parts]  # type: ignore[union-attr]


class Pausing(FunctionModel):
    """A model that breaks off its turn some times before it ends it; `withdrawn` are the turns that nobody wants."""

    def __init__(self, times: int, *, delay: float | None = None, fails: Exception | None = None) -> None:
        self.times, self.delay, self.fails, self.asked = times, delay, fails, 0
        self.withdrawn = list[str | None]()
        super().__init__(self._turn, model_name="pausing")

    async def _turn(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked += 1
        if self.asked > self.times:
            if self.fails is not None:
                raise self.fails
            return ModelResponse(parts=[TextPart("end")], provider_response_id="turn-1")
        parts = [TextPart(f"part {self.asked}")]
        return ModelResponse(parts=parts, state="suspended", provider_response_id="turn-1", provider_name="function")

    async def cancel_suspended_response(self, response: ModelResponse) -> None:
        self.withdrawn.append(response.provider_response_id)

    def continuation_delay(self, response: ModelResponse) -> float | None:
        return self.delay
