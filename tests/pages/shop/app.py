"""The app of the tests of pages: calls that people decide on, by every kind of rule, and one that may be in doubt."""

from __future__ import annotations

import os
import time
from pathlib import Path

from refold import App, Context
from refold.core.errors import RefoldError

app = App("shop")


@app.tool(effect="keyed")
def pay(to: str, amount: int, *, idempotency_key: str) -> str:
    """Pays somebody."""
    return f"paid {amount} to {to}"


@app.tool(effect="once")
def post(letter: str) -> str:
    """Posts a letter, which nobody can take back."""
    (folder() / "posted").write_text(letter)
    while (folder() / "hold").exists():
        time.sleep(0.02)
    return "posted"


@app.agent
async def payer(ctx: Context, to: str, amount: int) -> str:
    """Pays, or says why it may not."""
    try:
        return await ctx.call(pay, to, amount)
    except RefoldError as error:
        return f"not paid: {error.message}"


@app.agent
async def poster(ctx: Context, letter: str) -> str:
    """Posts a letter."""
    return await ctx.call(post, letter)


def folder() -> Path:
    """The folder that stands for the world."""
    return Path(os.environ["SHOP_FOLDER"])
