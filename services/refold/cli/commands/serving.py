"""`refold agents` and `refold tools`: agents and tools in the members' reports."""

from __future__ import annotations

from typing import Annotated

from refold.cli import output
from refold.cli.platform import Shell
from refold.client.reading.member import ServedBy


def list_agents(*, agent: Annotated[str, "Only this agent."] = "", shell: Shell) -> None:
    """List the agents that planners have, by version. Planners with different code are listed separately."""
    rows = [row for row in shell.platform.served().agents if agent in ("", row.agent)]
    cells = [
        {"agent": row.agent, "version": row.version, "code": row.manifest.get("code", ""), **_who(row.members)}
        for row in rows
    ]
    shell.print_rows(rows, "agent version code members reported", "no planner has reported an agent", cells=cells)


def list_tools(
    *, tool: Annotated[str, "Only this tool."] = "", pool: Annotated[str, "Only tools of this pool."] = "", shell: Shell
) -> None:
    """List the tools that executors run, by pool. `--json` adds the schemas of their arguments."""
    tools = shell.platform.served().tools
    rows = [row for row in tools if tool in ("", row.tool) and pool in ("", row.pool)]
    cells = [
        {
            **dict(row),
            "tags": ", ".join(row.tags),
            "approval": "always" if row.approval else "",
            **_who(row.members),
        }
        for row in rows
    ]
    columns = "tool pool effect version tags approval members reported"
    shell.print_rows(rows, columns, "no executor has reported a tool", cells=cells)


def _who(members: list[ServedBy]) -> dict[str, str]:
    last = max((member.reported_ms for member in members), default=0)
    return {"members": ", ".join(member.shown for member in members), "reported": output.in_utc(last)}
