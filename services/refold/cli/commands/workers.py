"""`refold worker list`: members of the services, and the agents, tools and versions in their reports."""

from dataclasses import dataclass
from typing import Annotated

from refold.cli import output
from refold.cli.platform import Shell
from refold.client.reading.member import ServedBy, Worker
from refold.client.reading.run import versions_in_use
from refold.core.errors import UsageError
from refold.sdk.source import spoken


@dataclass(frozen=True)
class WorkerFilter(Shell):
    agents: Annotated[bool, "List the agents that planners have, by version and code."] = False
    tools: Annotated[bool, "List the tools that executors run, by pool; --json adds the schemas of arguments."] = False
    versions: Annotated[bool, "List the versions that live runs need, and the planners that have each."] = False
    role: Annotated[str, "Only planner, executor or approval."] = ""
    pool: Annotated[str, "Only executors, or tools, of this pool."] = ""
    agent: Annotated[str, "With --agents or --versions: only this agent."] = ""
    tool: Annotated[str, "With --tools: only this tool."] = ""


def list_workers(*, which: WorkerFilter) -> None:
    """List planners, executors and approval services, living and killed; or what they serve.

    A killed one is in no group of Kafka any more; its last report stays for eight days.
    """
    if which.agents + which.tools + which.versions > 1:
        raise UsageError("one list at a time", hint="give one of --agents, --tools and --versions")
    unused = {"agents": "role pool tool", "tools": "role agent", "versions": "role pool tool"}
    listed = next((name for name in unused if getattr(which, name)), "")
    which.refuse(unused.get(listed, "agent tool"), f"is no filter of {listed or 'workers'}")
    if which.agents:
        _list_agents(which)
    elif which.tools:
        _list_tools(which)
    elif which.versions:
        _list_versions(which)
    else:
        workers = which.platform.workers().workers
        rows = [row for row in workers if which.role in ("", row.role) and which.pool in ("", row.pool)]
        columns = "role pool member state host partitions slots versions last_seen"
        which.print_rows(rows, columns, "no worker lives: `refold serve planner --app APP`", cells=map(_cells, rows))


def _list_agents(which: WorkerFilter) -> None:
    rows = [row for row in which.platform.served().agents if which.agent in ("", row.agent)]
    cells = [
        {"agent": row.agent, "version": row.version, "code": row.manifest.get("code", ""), **_who(row.members)}
        for row in rows
    ]
    which.print_rows(rows, "agent version code members reported", "no planner has reported an agent", cells=cells)


def _list_tools(which: WorkerFilter) -> None:
    tools = which.platform.served().tools
    rows = [row for row in tools if which.tool in ("", row.tool) and which.pool in ("", row.pool)]
    cells = [
        {**dict(row), "tags": ", ".join(row.tags), "approval": "always" if row.approval else "", **_who(row.members)}
        for row in rows
    ]
    columns = "tool pool effect version tags approval members reported"
    which.print_rows(rows, columns, "no executor has reported a tool", cells=cells)


def _list_versions(which: WorkerFilter) -> None:
    rows = [row for row in versions_in_use(which.all_runs()) if which.agent in ("", row.agent)]
    serving = which.platform.served().agents if rows else []
    have = {(code.agent, code.version): [by.shown for by in code.members] for code in serving}
    cells = [
        {
            **dict(row),
            "stalled": len(row.stalled),
            "because": sorted(set(row.stalled.values())),
            "planners": ", ".join(have.get((row.agent, spoken(row.version)[0]), [])) or "none",
        }
        for row in rows
    ]
    which.print_rows(rows, "agent version live stalled because planners", "no run lives", cells=cells)


def _cells(row: Worker) -> dict[str, object]:
    last_seen = "now" if row.alive else output.in_utc(row.seen_ms)
    return {**row.dump(), "state": "alive" if row.alive else "gone", "slots": row.load, "last_seen": last_seen}


def _who(members: list[ServedBy]) -> dict[str, str]:
    last = max((member.reported_ms for member in members), default=0)
    return {"members": ", ".join(member.shown for member in members), "reported": output.in_utc(last)}
