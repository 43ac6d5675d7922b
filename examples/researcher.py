"""A question is looked into from many sides, each side by an agent in a run of its own, all under one budget.

refold dev examples/researcher.py
refold run start researcher --id r-1 --input '{"question": "Why do stars twinkle?", "sides": ["air", "heat"]}'
refold run show r-1   # what it has taken, with all that it has started

Offline; RESEARCHER_MODEL=openai:gpt-5 asks a real model.
"""

from __future__ import annotations

import asyncio
import os

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from refold import App, Budget, ChildFailed, Context
from refold.contrib.pydantic_ai import CallOptions

app = App("research")
LIBRARY = {"air": "Air bends light.", "heat": "Warm air bends it less.", "planets": "A planet is no point of light."}


async def offline(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Looks the side up that it is asked about, and says what it found: a model for those who are offline."""
    newest = messages[-1].parts[-1]
    if isinstance(newest, ToolReturnPart):
        return ModelResponse(parts=[TextPart(str(newest.content))])
    side = str(getattr(newest, "content", "")).rsplit(" ", 1)[-1]
    return ModelResponse(parts=[ToolCallPart("look_up", {"side": side}, tool_call_id="call-1")])


reader = Agent(os.environ.get("RESEARCHER_MODEL") or FunctionModel(offline, model_name="offline"), name="reader")


@reader.tool_plain(metadata={"refold": CallOptions(effect="pure")})
def look_up(side: str) -> str:
    """What the library has on one side of a question."""
    return LIBRARY.get(side, "nothing")


app.agent(reader)


@app.agent(budget=Budget(tokens=50_000, calls=40))
async def researcher(ctx: Context, question: str, sides: list[str]) -> dict[str, str]:
    """Has the sides looked into, three at a time; of those that the budget did not reach it says so."""
    three = asyncio.Semaphore(3)  # all at once, each would begin and none might end

    async def look(side: str) -> tuple[str, str]:
        async with three:
            try:
                return side, await ctx.run("reader", {"prompt": f"{question} Look into {side}"})
            except ChildFailed as error:
                return side, f"left out: {error.fields['code']}"

    return dict(await asyncio.gather(*map(look, sides)))
