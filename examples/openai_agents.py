"""An agent of the OpenAI Agents SDK that no crash begins anew: its model and its tools are calls.

refold dev examples/openai_agents.py
refold run start travel --id travel-1 --input '{"wish": "somewhere warm"}' --wait

`ask_model` reads from a script, so that nothing here needs a network: where it says so a provider is asked.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from agents import Agent, FunctionTool, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter

from refold import App, Context

app = App("travel")
OUTPUT: TypeAdapter[Any] = TypeAdapter(list[ResponseOutputItem])
set_tracing_disabled(disabled=True)  # traces are sent by a thread, which no run can have


def asks(name: str, number: int, **args: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c-{number}", "name": name, "arguments": json.dumps(args)}


@app.tool(effect="pure")
def ask_model(instructions: str, conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a model answers. A live one: `client.responses.create(...)`, and its `output` as JSON."""
    told = [item["output"] for item in conversation if item.get("type") == "function_call_output"]
    if not told:
        return [asks("weather", 1, city="Oslo"), asks("weather", 2, city="Porto")]
    if len(told) == 2:
        return [asks("book", 3, city=max(told, key=lambda text: int(text.split()[1])).split()[0])]
    text = {"type": "output_text", "text": f"You are booked: {told[-1]}", "annotations": []}
    return [{"type": "message", "id": "m-1", "role": "assistant", "status": "completed", "content": [text]}]


@app.tool(effect="pure")
def weather(city: str) -> str:
    """The weather of a city, in degrees."""
    return f"{city} {len(city) ** 2}"


@app.tool(effect="keyed")
def book(city: str, *, idempotency_key: str) -> str:
    """Books a journey: a file under the key's name, so that the same call again books nothing more."""
    folder = Path(os.environ.get("BOOKINGS", "bookings"))
    folder.mkdir(exist_ok=True)
    (folder / idempotency_key[:12]).write_text(f"{city}\n")
    return f"{city} {idempotency_key[:12]}"


class Calls(Model):
    """A model of which every answer is in the log before anything follows of it."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:  # noqa: A002
        said = [{"role": "user", "content": input}] if isinstance(input, str) else input
        output = await self.ctx.call(ask_model, system_instructions or "", said)
        return ModelResponse(OUTPUT.validate_python(output), Usage(requests=1), None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("a call has one answer")


def tool_of(ctx: Context, name: str) -> FunctionTool:
    tool = app.tools[name]

    async def invoke(_: Any, args: str) -> Any:
        return await ctx.call(name, **json.loads(args))

    return FunctionTool(name, tool.description, tool.schema(), invoke, strict_json_schema=False)


@app.agent
async def travel(ctx: Context, wish: str) -> str:
    tools: list[Any] = [tool_of(ctx, "weather"), tool_of(ctx, "book")]
    agent = Agent(name="travel", instructions="Book where it is warm.", model=Calls(ctx), tools=tools)
    done = await Runner.run(agent, wish)
    return str(done.final_output)
