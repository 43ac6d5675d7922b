"""An app for tests that kill its services: a slow model, and an agent that waits for people and parcels."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic_ai import Agent, DeferredToolRequests, RunContext
from pydantic_ai.capabilities import RequestInput
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset

from refold import App, Context
from refold.contrib.pydantic_ai import CallOptions, RefoldDurability, durable

WORDS = ["one ", "two ", "three"]


def place() -> Path:
    """Where tests and the model tell each other things: `asked` has a line a request, `hang` holds it half-way."""
    return Path(os.environ.get("PLACE", "."))


def note(name: str, line: str) -> None:
    """Adds a line to a file there."""
    with (place() / name).open("a") as file:
        file.write(f"{line}\n")


async def speak(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    note("asked", "asked")
    for word in WORDS[:2]:
        yield word
    while (place() / "hang").exists():  # noqa: ASYNC110 - another process says so
        await asyncio.sleep(0.02)
    yield WORDS[2]


talker = Agent(FunctionModel(stream_function=speak, model_name="speaker"), name="talker")
app = App("talk")


async def decide(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Charges, has it shipped, and says what has come of both."""
    turn = len(messages) // 2
    note("decided", str(turn))
    if turn == 2:
        heard = [str(getattr(part, "content", "")) for message in messages[2::2] for part in message.parts]
        return ModelResponse(parts=[TextPart("; ".join(heard))])
    wanted = ToolCallPart(["charge", "ship"][turn], [{"amount": 5}, {}][turn], tool_call_id=f"call-{turn}")
    return ModelResponse(parts=[wanted])


def post(ctx: RunContext[None], requests: DeferredToolRequests, token: str) -> None:
    """Hands a token out."""
    note("posted", token)


ship = ToolDefinition(name="ship", parameters_json_schema={"type": "object", "properties": {}})
clerk = Agent(
    FunctionModel(decide, model_name="clerk"),
    name="clerk",
    toolsets=[ExternalToolset([ship], id="far")],
    capabilities=[RequestInput(post)],
)


@clerk.tool_plain(requires_approval=True)
def charge(amount: int) -> str:
    """Takes money, once."""
    note("charged", str(amount))
    return f"charged {amount}"


durable(app, clerk, RefoldDurability(model=CallOptions(pool="default")))
durable(app, talker, RefoldDurability(stream=True, model=CallOptions(pool="default")))


@app.agent
async def host(ctx: Context, prompt: str) -> object:
    """Let the talker talk."""
    return await ctx.run("talker", {"prompt": prompt})
