"""A shop whose agent asks a model at the address in MODEL_URL; each sale is a line in the file SALES."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from refold import App, Retry
from refold.contrib.pydantic_ai import CallOptions, RefoldDurability, durable, idempotency_key

provider = OpenAIProvider(base_url=os.environ.get("MODEL_URL", "http://127.0.0.1:9/v1"), api_key="none")
agent = Agent(OpenAIChatModel("made-up", provider=provider), name="shop", instructions="Sell.")


@agent.tool_plain(metadata={"refold": CallOptions(effect="keyed")})
def sell(item: str) -> str:
    """Sells something."""
    sales, key = Path(os.environ["SALES"]), idempotency_key()
    if key not in sales.read_text():
        with sales.open("a") as file:
            file.write(f"{key} {item}\n")
    return f"sold {item}"


app = App("shop")
patient = CallOptions(retry=Retry(attempts=8, base=timedelta(milliseconds=100)), lease=timedelta(seconds=2))
durable(app, agent, RefoldDurability(model=patient))
