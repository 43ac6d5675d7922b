"""A projection of your own: refunds by customer, and how much was refunded each day.

    refold dev examples/refunds.py
    refold run start support --input '{"customer": "ada", "cents": 1250}'
    sqlite3 .refold/views/views.db 'select * from refunds; select * from refunds_by_day'

`refold projection list refunds` shows how far it is, `refold projection rebuild refunds --app examples/refunds.py`
builds it anew from the log, `refold projection verify` proves that it contains what the log contains.
"""

from __future__ import annotations

from refold import App, Context, Projection, Recorded, View, key, sums, table
from refold.core.events import CallCompleted

app = App("shop")


@app.tool(effect="keyed")
def refund(customer: str, cents: int, *, idempotency_key: str) -> dict[str, int]:
    """Pays money back. The bank knows the key, and pays once."""
    return {"cents": cents}


@app.agent
async def support(ctx: Context, customer: str, cents: int) -> str:
    """Pays back what a customer asks for."""
    paid = await ctx.call(refund, customer, cents)
    return f"{customer} has {paid['cents']} cents back"


@app.projection
class Refunds(Projection):
    """Refunds by customer and day."""

    version = 1  # a higher one is built beside the one in use, and replaces it when it has caught up
    events = (CallCompleted,)
    refunds = table("refunds", key(call_id=str), run_id=str, customer=str, cents=int, at_ms=int)
    by_day = sums("refunds_by_day", key(day=str), n=int, cents=int)

    def apply(self, view: View, recorded: Recorded) -> None:
        """Pure: what it writes follows from the event and the call that it is of."""
        call, cents = recorded.call, recorded.result["cents"]
        if call.tool == "refund":
            customer = call.args["customer"]
            view.put(self.refunds, call_id=call.call_id, customer=customer, cents=cents, at_ms=recorded.at_ms)
            view.add(self.by_day, day=recorded.day, n=1, cents=cents)
