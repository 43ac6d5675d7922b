"""An app whose model speaks slowly, for tests that kill its executor in the middle of a word."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from refold import App
from refold.contrib.pydantic_ai import CallOptions, RefoldDurability, durable

WORDS = ["one ", "two ", "three"]


def place() -> Path:
    """Where tests and the model tell each other things: `asked` has a line a request, `hang` holds it half-way."""
    return Path(os.environ.get("PLACE", "."))


async def speak(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    with (place() / "asked").open("a") as asked:
        asked.write("asked\n")
    for word in WORDS[:2]:
        yield word
    while (place() / "hang").exists():  # noqa: ASYNC110 - another process says so
        await asyncio.sleep(0.02)
    yield WORDS[2]


talker = Agent(FunctionModel(stream_function=speak, model_name="speaker"), name="talker")
app = App("talk")
durable(app, talker, RefoldDurability(stream=True, model=CallOptions(pool="default")))
