"""An app whose calls go wrong: one is on hold when its attempts are used up, one fails its run."""

from __future__ import annotations

from refold import App, Context, Retry, TerminalError, TransientError

app = App("stuck")


@app.tool(effect="keyed", retry=Retry(attempts=1, then="hold"))
def ring(number: str, *, idempotency_key: str) -> str:
    """Nobody ever answers."""
    raise TransientError(f"nobody answers at {number}")


@app.tool(effect="once")
def pay(amount: int) -> str:
    """Small amounts alone."""
    if amount > 5:
        raise TerminalError("that is too much", code="too_much")
    return f"paid {amount}"


@app.tool(effect="once")
def note(text: str) -> str:
    """Says it again."""
    return text


@app.agent
async def caller(ctx: Context, number: str) -> str:
    """Rings."""
    return await ctx.call(ring, number)


@app.agent
async def payer(ctx: Context, amount: int) -> str:
    """Notes, and pays."""
    await ctx.call(note, f"{amount} are due")
    return await ctx.call(pay, amount)
