"""`refold limits`: what was spent of the limits per day and month, of how much."""

from __future__ import annotations

from typing import Annotated

from refold.cli import output
from refold.cli.platform import Shell
from refold.cli.views.runs import taken_of
from refold.core.planning.windows import value_digest
from refold.core.topics import BUDGET_SPENT
from refold.views.budget import LimitInUse, limits_in_use


def limits(
    *,
    agent: Annotated[str, "Only limits of this agent."] = "",
    value: Annotated[str, "Only this tenant, say: the value of a label."] = "",
    shell: Shell,
) -> None:
    """List what runs have spent of the limits per day and month. The newest window is first."""
    found = [
        each
        for each in limits_in_use(shell.runs.reader.scan(BUDGET_SPENT))
        if agent in ("", each.agent) and (not value or each.value in (value, value_digest(value)))
    ]
    columns = ("window", "runs", "usd", "tokens", "calls", "reached")
    shell.tell(found, lambda: output.print_rows(list(map(_row, found)), columns, "nothing was spent"))


def _row(limit: LimitInUse) -> dict[str, str]:
    whose = [f"agent {limit.agent}"] if limit.agent else []
    whose += [f"{limit.label} {limit.value}"] if limit.label else []
    cells = taken_of(limit.spent, limit.limits)
    return {"window": limit.window, "runs": ", ".join(whose) or "all", **cells, "reached": limit.reached}
