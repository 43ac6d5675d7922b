"""An agent of pydantic-ai that reads page after page: the same alone, on Refold and on DBOS. It knows none of them."""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

CHARACTERS = 200
"""Of a page."""


def reader(turns: int, characters: int = CHARACTERS) -> Agent[None, str]:
    """Its model wants a page at each of so many turns, then says something: one request more than pages."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = len(messages) // 2
        if turn >= turns:
            return ModelResponse(parts=[TextPart("read")])
        return ModelResponse(parts=[ToolCallPart("page", {"n": turn}, tool_call_id=f"call-{turn}")])

    agent = Agent(FunctionModel(answer, model_name="script"), name="reader", instructions="Read all pages.")

    @agent.tool_plain(metadata={"refold": {"effect": "pure"}})
    async def page(n: int) -> str:
        """A page."""
        return f"page {n} ".ljust(characters, "x")

    return agent
