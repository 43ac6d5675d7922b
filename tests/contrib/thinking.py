"""An agent of pydantic-ai that tests share: its model is a script, and its tools count how often they were called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from refold import App
from refold.contrib.pydantic_ai import CallOptions, RefoldDurability, durable, idempotency_key

Script = list[ModelResponse]


def says(text: str) -> ModelResponse:
    """A model's last word."""
    return ModelResponse(parts=[TextPart(text)])


def calls(*wanted: tuple[str, dict[str, Any]]) -> ModelResponse:
    """A model that wants tools."""
    parts = [ToolCallPart(tool, args, tool_call_id=f"call-{tool}-{n}") for n, (tool, args) in enumerate(wanted)]
    return ModelResponse(parts=parts)


@dataclass
class Model:
    """A model that answers from a script by the length of the conversation, and notes what it was asked."""

    script: Callable[[int, list[ModelMessage]], ModelResponse]
    asked: list[list[ModelMessage]] = field(default_factory=list)

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(messages)
        return self.script(len(messages) // 2, messages)

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self.answer, model_name="script")


def scripted(*answers: ModelResponse) -> Model:
    """A model that gives these answers, one for each request of a conversation."""
    return Model(lambda turn, messages: answers[turn])


def shop(model: Model, **options: Any) -> tuple[App, Agent[str, str], list[str]]:
    """An app with the agent `shop`, and what its tools did."""
    keys: list[str] = []
    agent, did = Agent(model.model, name="shop", deps_type=str, instructions="Sell."), list[str]()

    @agent.tool(metadata={"refold": CallOptions(effect="pure")})
    async def price(ctx: RunContext[str], item: str) -> int:
        """What an item costs."""
        did.append(f"price {item} for {ctx.deps}")
        return len(item)

    @agent.tool_plain(metadata={"refold": CallOptions(effect="keyed", tags=("money",))})
    def sell(item: str, count: int = 1) -> str:
        """Sells it."""
        did.append(f"sell {item}")
        keys.append(idempotency_key())
        if count < 1:
            raise ModelRetry("count is at least one")
        return f"sold {count} {item}"

    app = App("shop")
    durable(app, agent, RefoldDurability(**options) if options else None)
    return app, agent, did
