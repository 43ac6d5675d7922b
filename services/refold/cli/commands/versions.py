"""`refold versions`: which versions of agents have runs that live, and handing runs to another."""

from __future__ import annotations

from typing import Annotated

from refold.cli import output
from refold.cli.commands.run import Operator
from refold.cli.errors import FAILED, fail
from refold.cli.platform import Shell
from refold.client.platform import login
from refold.core.errors import ConflictError, NotFoundError, UsageError
from refold.operations.run import migrate
from refold.operations.runs import Runs
from refold.sdk.source import spoken
from refold.views.agent import versions_in_use
from refold.views.history import Run


def list_versions(*, agent: Annotated[str, "Only of this agent."] = "", shell: Shell) -> None:
    """List the versions that live runs need, and stalled runs."""
    rows = [row for row in versions_in_use(_all(shell.runs)) if agent in ("", row.agent)]
    cells = [
        {
            "agent": row.agent,
            "version": row.version,
            "live": row.live,
            "stalled": len(row.stalled),
            "because": sorted(set(row.stalled.values())),
        }
        for row in rows
    ]
    columns = ("agent", "version", "live", "stalled", "because")
    shell.tell(rows, lambda: output.print_rows(cells, columns, "no run lives"))


def migrate_runs(
    run: Annotated[str, "This run."] = "",
    *,
    to: Annotated[str, "VERSION", "What the runs are to go on with."],
    agent: Annotated[str, "All runs of this agent that live, with --from."] = "",
    since: Annotated[str, "--from VERSION", "Only runs that are of this version."] = "",
    dry_run: Annotated[bool, "Say which runs it would be; write nothing."] = False,
    operator: Operator,
) -> None:
    """Migrate runs to another version of their agent. Each run migrates only if its history fits that version."""
    if bool(run) == bool(agent and since):
        raise UsageError("say which runs", hint="RUN, or --agent and --from")
    chosen = _chosen(operator.runs, run, agent, since)
    if not chosen:
        raise NotFoundError(f"no run of {agent} of version {since} lives", hint="`refold versions list` shows all")
    rows, told = list[dict[str, str]](), output.progress()
    for number, each in enumerate(chosen):
        told("migrate", number, len(chosen))
        rows.append(_row(each, to, "would" if dry_run else _migrate(each, to, operator)))
    refused = [row for row in rows if row["outcome"] not in ("accepted", "known", "would")]
    lines = [f"[bold]{output.escape(row['run_id'])}[/]: {output.escape(row['outcome'])}" for row in refused]
    verb = "would be" if dry_run else "are"
    done = f"{output.counted(len(rows) - len(refused), 'run')} {verb} of version {output.escape(to)}"
    operator.tell(rows, "\n".join([*lines, done]))
    if refused:
        fail(FAILED)


def _chosen(runs: Runs, run: str, agent: str, since: str) -> list[Run]:
    if run:
        found = runs.get(run)
        if since and since not in _names(found):
            raise ConflictError(f"run {run} is of version {found.state.version}", hint="leave --from out")
        return [found]
    live = [each for each in _all(runs) if not each.state.over and each.state.request and each.state.started_ms]
    return [each for each in live if each.state.request.agent == agent and since in _names(each)]  # type: ignore[union-attr]


def _names(run: Run) -> tuple[str, str]:
    """What the version of a run is called: with what it stands on, and without."""
    return run.state.version, spoken(run.state.version)[0]


def _migrate(run: Run, to: str, operator: Operator) -> str:
    try:
        return operator.perform(migrate(run.state, to, operator.actor or login())).what
    except (ConflictError, UsageError) as error:
        return error.message


def _row(run: Run, to: str, outcome: str) -> dict[str, str]:
    return {"run_id": run.state.run_id, "from": run.state.version, "to": to, "outcome": outcome}


def _all(runs: Runs) -> list[Run]:
    told, found = output.progress(), list[Run]()
    for number in range(runs.partitions):
        told("read the run log", number, runs.partitions)
        found += runs.all(number)
    return found
