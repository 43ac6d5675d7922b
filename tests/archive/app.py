"""An app whose runs carry what they are told through every topic: as input, arguments, notes and results."""

from __future__ import annotations

from refold import App, CallFailed, Context

app = App("canaries")


@app.tool(effect="pure")
def sing(song: str) -> str:
    """A result that is not its argument."""
    return f"{song}-sung"


@app.tool(effect="once", approval="required")
def fly(away: str) -> str:
    """What people have to allow, with a claim in the log."""
    return f"{away}-flown"


@app.agent
async def canary(ctx: Context, song: str, flies: bool = False) -> str:
    """Notes, calls, and returns."""
    ctx.note("heard", f"{song}-noted")
    sung = await ctx.call(sing, f"{song}-argued")
    if flies:
        await ctx.call(fly, f"{song}-away")
    return f"{sung}-returned"


@app.agent
async def called(ctx: Context, song: str) -> str:
    """Waits for an outside system, and for a signal."""
    paid = ctx.callback("paid", schema=str)
    ctx.note("token", paid.token)
    try:
        answer = await paid
    except CallFailed as failed:
        answer = str(failed)
    told = await ctx.wait_for("told")
    return f"{song}-{answer}-{told.data}"
