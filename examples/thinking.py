"""An agent of pydantic-ai, twenty lines of it, made durable by one.

    refold dev examples/thinking.py
    refold run start shopper --input '{"prompt": "Eggs for a cake, please."}' --wait

Offline a script answers in the place of a model. With MODEL=openai:gpt-5.2, or any other that pydantic-ai knows, and
its key in the environment of the executors, that one does; BASE_URL is for what speaks as OpenAI does.
"""

from __future__ import annotations

import os
from typing import Any

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.function import AgentInfo, FunctionModel

from refold import App
from refold.contrib.pydantic_ai import CallOptions, idempotency_key

SCRIPT: list[list[Any]] = [
    [ToolCallPart("look_up", {"item": "egg"}), ToolCallPart("look_up", {"item": "flour"})],
    [ToolCallPart("order", {"item": "egg", "count": 6})],
    [TextPart("Six eggs are on their way.")],
]


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """What the model says, by how much was said before."""
    return ModelResponse(parts=SCRIPT[len(messages) // 2])


def model() -> Model:
    """The one in MODEL, or the script."""
    name, url = os.environ.get("MODEL", ""), os.environ.get("BASE_URL", "")
    if url:
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        return OpenAIChatModel(name, provider=OpenAIProvider(base_url=url, api_key=os.environ.get("API_KEY", "none")))
    return infer_model(name) if name else FunctionModel(scripted, model_name="script")


shopper = Agent(model(), name="shopper", instructions="Look things up, then order what is needed, once.")


@shopper.tool_plain(metadata={"refold": CallOptions(effect="pure")})
def look_up(item: str) -> dict[str, int]:
    """How many there are, and what one costs in cents."""
    return {"there": 12 * len(item), "cents": 10 + len(item)}


@shopper.tool_plain(metadata={"refold": CallOptions(effect="keyed")})
def order(item: str, count: int) -> str:
    """Orders something."""
    return f"{count} {item} ordered as {idempotency_key()[:8]}"  # a real shop is handed the whole key, and knows it


app = App("shopping")
app.agent(shopper)  # the one line
