"""What runs have taken of budgets and limits, for people."""

from __future__ import annotations

from refold.cli.output import escape
from refold.core.run.metering import in_usd
from refold.views.budget import Spending
from refold.views.run import RunInfo


def budget_lines(run: RunInfo) -> list[str]:
    """What a run has taken of its budget, in a line."""
    if (budget := run.budget) is None:
        return []
    limited = taken_of(budget.used, budget.limits).items()
    parts = [words + ("" if kind == "usd" else f" {kind}") for kind, words in limited if words != _NONE[kind]]
    paid = budget.maybe_paid
    if paid.nano_usd or paid.tokens:
        lost = in_usd(paid.nano_usd) if paid.nano_usd else f"{paid.tokens:,} tokens"
        over = "may be paid: nobody has said what came of it" if run.over else "is under way, or may be paid"
        parts.append(f"[magenta]{lost} of it {over}[/]")
    reached = [f"[yellow]soft threshold of {escape(name)} reached[/]" for name in budget.reached]
    return ["  took " + ", ".join([*parts, *reached])] if parts else []


def taken_of(taken: Spending, limits: Spending) -> dict[str, str]:
    """What was taken of each kind, and of how much."""
    return {
        "usd": in_usd(taken.nano_usd) + (f" of {in_usd(limits.nano_usd)}" if limits.nano_usd else ""),
        "tokens": f"{taken.tokens:,}" + (f" of {limits.tokens:,}" if limits.tokens else ""),
        "calls": f"{taken.calls:,}" + (f" of {limits.calls:,}" if limits.calls else ""),
    }


_NONE = {"usd": in_usd(0), "tokens": "0", "calls": "0"}
