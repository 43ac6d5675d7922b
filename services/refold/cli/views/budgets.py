"""What a run has taken of its budget, as people and programs read it."""

from __future__ import annotations

from typing import Any

from refold.cli.output import escape
from refold.core.events import Spendable
from refold.core.parts import Used
from refold.core.run.metering import in_usd
from refold.core.run.purse import Amount
from refold.core.run.state import RunState


def budget_data(state: RunState) -> dict[str, Any] | None:
    """What a run has taken with those of its children that are over, and its limits; None if nothing is counted.

    **Units**: billionths of a dollar, milliseconds; a limit of 0 is none.
    """
    if (purse := state.purse) is None:
        return None
    used, limits = purse.used, purse.limits
    return {
        "used": {"tokens": used.tokens, "nano_usd": used.nano_usd, "calls": used.calls},
        "maybe_paid": {"tokens": used.lost_tokens, "nano_usd": used.lost_nano_usd},
        "limits": {**spendable_data(limits), "ms": limits.ms},
        "soft_percent": limits.soft_percent,
        "then": limits.then,
        "reached": sorted(purse.told),
    }


def budget_lines(state: RunState) -> list[str]:
    """The same in a line."""
    if (purse := state.purse) is None:
        return []
    used = purse.used
    parts = [_part(kind, *pair) for kind, pair in taken_of(used, purse.limits).items() if any(pair)]
    if used.lost_nano_usd or used.lost_tokens:
        lost = in_usd(used.lost_nano_usd) if used.lost_nano_usd else f"{used.lost_tokens:,} tokens"
        over = "may be paid: nobody has said what came of it" if state.over else "is under way, or may be paid"
        parts.append(f"[magenta]{lost} of it {over}[/]")
    reached = [f"[yellow]soft threshold of {escape(name)} reached[/]" for name in sorted(purse.told)]
    return ["  took " + ", ".join([*parts, *reached])] if parts else []


def spendable_data(limits: Spendable) -> dict[str, int]:
    """Limits of what is spent. **Units**: billionths of a dollar; 0: any amount."""
    return {"tokens": limits.tokens, "nano_usd": limits.nano_usd, "calls": limits.calls}


def taken_of(taken: Amount | Used, limits: Spendable) -> dict[str, tuple[int, int]]:
    """What was taken of each kind, and of how much. **Units**: billionths of a dollar; 0: any amount."""
    return {
        "usd": (taken.nano_usd, limits.nano_usd),
        "tokens": (taken.tokens, limits.tokens),
        "calls": (taken.calls, limits.calls),
    }


def worded(kind: str, taken: int, most: int) -> str:
    """So much of a kind, of how much."""
    words = in_usd if kind == "usd" else "{:,}".format
    return words(taken) + (f" of {words(most)}" if most else "")


def _part(kind: str, taken: int, most: int) -> str:
    return worded(kind, taken, most) + ("" if kind == "usd" else f" {kind}")
