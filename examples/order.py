"""An order: it waits for a payment, a day at most, and undoes what it has done when none comes.

refold dev examples/order.py
refold run start order --id order-1 --input '{"item": "lamp"}'
refold run callback TOKEN --payload '{"amount": 20}'    # it lies in orders/, for the provider
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from refold import App, CallbackError, Context

app = App("shop")


class Payment(BaseModel):
    amount: int


def _write(key: str, text: str) -> str:
    """A receiver that recognises keys: the same call again writes the same file."""
    folder = Path(os.environ.get("ORDERS", "orders"))
    folder.mkdir(exist_ok=True)
    (folder / key[:12]).write_text(f"{text}\n")
    return key[:12]


@app.tool(effect="keyed")
def reserve(item: str, *, idempotency_key: str) -> str:
    """Takes an item off the shelf."""
    return _write(idempotency_key, f"reserved {item}")


@app.tool(effect="keyed")
def release(reservation: str, *, idempotency_key: str) -> str:
    """Puts it back."""
    return _write(idempotency_key, f"released {reservation}")


@app.tool(effect="keyed")
def ask_for_payment(item: str, token: str, *, idempotency_key: str) -> str:
    """Tells a payment provider what is to be paid; it answers with the token, whenever it likes."""
    return _write(idempotency_key, f"pay for {item} with {token}")


@app.tool(effect="keyed")
def ship(reservation: str, *, idempotency_key: str) -> str:
    """Sends the parcel."""
    return _write(idempotency_key, f"shipped {reservation}")


@app.agent
async def order(ctx: Context, item: str, seconds: int = 86_400) -> str:
    reservation = await ctx.call(reserve, item)
    paid = ctx.callback("paid", schema=Payment, timeout=timedelta(seconds=seconds))
    await ctx.call(ask_for_payment, item, paid.token)
    try:
        payment = await paid
    except (TimeoutError, CallbackError) as error:
        await ctx.call(release, reservation)
        return f"released: {type(error).__name__}"
    return f"{payment.amount} paid, parcel {await ctx.call(ship, reservation)}"
