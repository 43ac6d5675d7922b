"""What code does that is deployed by mistake: it differs along the history of what the right code began."""

from __future__ import annotations

from refold.sdk.context import Context


async def disagrees(ctx: Context) -> None:
    """Notes something that was not noted."""
    if ctx.replaying:
        ctx.note("otherwise")


async def hungers(ctx: Context) -> None:
    """Needs more memory than there is."""
    if ctx.replaying:
        raise MemoryError
