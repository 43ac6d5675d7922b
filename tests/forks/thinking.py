"""An agent of pydantic-ai whose model says what it is told, offline."""

from __future__ import annotations

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from refold import App
from refold.contrib.pydantic_ai import CallOptions


def _says(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if len(messages) == 1:
        return ModelResponse([ToolCallPart("price", {"item": "tea"}), ToolCallPart("price", {"item": "milk"})])
    return ModelResponse([TextPart("tea is dear")])


thinker = Agent(FunctionModel(_says), name="thinker")


@thinker.tool_plain(metadata={"refold": CallOptions(effect="pure")})
def price(item: str) -> int:
    """What an item costs."""
    return len(item)


app = App("thinking")
app.agent(thinker)
