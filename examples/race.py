"""First of three: whoever names a price first gets the parcel, and nobody waits for the others any more.

refold dev examples/race.py
refold run start race --id race-1 --input '{"parcel": "p-1"}' --wait
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from refold import App, CallFailed, Context, TerminalError

app = App("couriers")
SECONDS = {"snail": 20, "horse": 5, "falcon": 10}


@app.tool(effect="pure")
async def price(courier: str, parcel: str) -> str:
    """Asks a courier, who takes a while. The name of whoever answers is the answer."""
    await asyncio.sleep(SECONDS[courier])
    return courier


@app.tool(effect="keyed")
def book(courier: str, parcel: str, *, idempotency_key: str) -> str:
    """Books a courier: a file under the key's name, so that the same call again books nothing more."""
    folder = Path(os.environ.get("BOOKINGS", "bookings"))
    folder.mkdir(exist_ok=True)
    (folder / idempotency_key[:12]).write_text(f"{courier} {parcel}\n")
    return idempotency_key[:12]


@app.agent
async def race(ctx: Context, parcel: str) -> str:
    asked = [asyncio.create_task(ctx.call(price, courier, parcel)) for courier in SECONDS]
    for answer in asyncio.as_completed(asked):
        try:
            first = await answer
        except CallFailed:  # who is out of order does not win
            continue
        for task in asked:
            task.cancel()
        return f"{first} {await ctx.call(book, first, parcel)}"
    raise TerminalError("no courier has named a price")
