"""`refold limits`: what was spent of the limits per day and month, of how much."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from refold.cli import output
from refold.cli.platform import Shell
from refold.cli.views.budgets import spendable_data, taken_of, worded
from refold.client.limits import LimitInUse, limits_in_use
from refold.core.planning.windows import value_digest
from refold.core.topics import BUDGET_SPENT


def limits(
    agent: Annotated[str, typer.Option("--agent", help="Only limits of this agent.")] = "",
    value: Annotated[str, typer.Option("--value", help="Only this tenant, say: the value of a label.")] = "",
    *,
    shell: Shell,
) -> None:
    """List what runs have spent of the limits per day and month. The newest window is first."""
    found = [
        each
        for each in limits_in_use(shell.runs.reader.scan(BUDGET_SPENT))
        if agent in ("", each.agent) and (not value or each.value in (value, value_digest(value)))
    ]
    columns = ("window", "runs", "usd", "tokens", "calls", "reached")
    shell.tell(
        [_data(each) for each in found], lambda: output.print_rows(list(map(_row, found)), columns, "nothing was spent")
    )


def _data(limit: LimitInUse) -> dict[str, Any]:
    return {
        "window": limit.window,
        "agent": limit.agent,
        "label": limit.label,
        "value": limit.value,
        "spent": limit.spent._asdict(),
        "limits": spendable_data(limit.limits),
        "soft_percent": limit.limits.soft_percent,
        "then": limit.limits.then,
        "reached": _reached(limit),
    }


def _row(limit: LimitInUse) -> dict[str, str]:
    whose = [f"agent {limit.agent}"] if limit.agent else []
    whose += [f"{limit.label} {limit.value}"] if limit.label else []
    cells = {kind: worded(kind, *pair) for kind, pair in taken_of(limit.spent, limit.limits).items()}
    return {"window": limit.window, "runs": ", ".join(whose) or "all", **cells, "reached": _reached(limit)}


def _reached(limit: LimitInUse) -> str:
    """`hard` or `soft`, as the more of what is limited is used up; nothing below."""
    pairs = taken_of(limit.spent, limit.limits).values()
    used = max((taken * 100 / most for taken, most in pairs if most), default=0)
    return "hard" if used >= 100 else "soft" if used > limit.limits.soft_percent else ""
