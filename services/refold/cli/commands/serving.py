"""`refold agents` and `refold tools`: agents and tools in the members' reports."""

from __future__ import annotations

from typing import Annotated

from refold.cli import output
from refold.cli.platform import Shell
from refold.operations.workers import served
from refold.views.member import ServedBy


def list_agents(*, agent: Annotated[str, "Only this agent."] = "", shell: Shell) -> None:
    """List the agents that planners have, by version. Planners with different code are listed separately."""
    rows = [each for each in served(shell.runs.reader, shell.platform.groups).agents if agent in ("", each.agent)]
    cells = [
        {"agent": each.agent, "version": each.version, "code": each.manifest.get("code", ""), **_who(each.members)}
        for each in rows
    ]
    shell.tell_rows(rows, "agent version code members reported", "no planner has reported an agent", cells=cells)


def list_tools(
    *, tool: Annotated[str, "Only this tool."] = "", pool: Annotated[str, "Only tools of this pool."] = "", shell: Shell
) -> None:
    """List the tools that executors run, by pool. `--json` adds the schemas of their arguments."""
    found = served(shell.runs.reader, shell.platform.groups).tools
    rows = [each for each in found if tool in ("", each.tool) and pool in ("", each.pool)]
    cells = [
        {
            **dict(each),
            "tags": ", ".join(each.tags),
            "approval": "always" if each.approval else "",
            **_who(each.members),
        }
        for each in rows
    ]
    columns = "tool pool effect version tags approval members reported"
    shell.tell_rows(rows, columns, "no executor has reported a tool", cells=cells)


def _who(members: list[ServedBy]) -> dict[str, str]:
    last = max((each.reported_ms for each in members), default=0)
    return {"members": ", ".join(each.shown for each in members), "reported": output.in_utc(last)}
