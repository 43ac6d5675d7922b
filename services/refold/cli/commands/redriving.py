"""`refold run retry`: a failed run goes on where it failed, a stalled one with the code that is there now."""

from __future__ import annotations

from typing import Annotated

import typer

from refold.cli import output
from refold.cli.clock import since_ms, until_ms
from refold.cli.commands.run import Operator
from refold.cli.errors import FAILED, fail
from refold.cli.groups import Natural
from refold.cli.platform import json_value
from refold.client.platform import login
from refold.core.errors import UsageError
from refold.core.run.metering import dollars, nano_usd
from refold.core.wire import canonical
from refold.operations.run import Changes, Done, left_behind, redrive, retry_code, stays
from refold.operations.selection import Selector, selected
from refold.views.history import Run
from refold.views.outcome import Redriven
from refold.views.run import ending_of, row_of


def retry_run(
    run: Annotated[str, "The run; without it, filters."] = "",
    *,
    step: Annotated[Natural, "--from STEP", "Repeat this step and all after it."] = 0,
    edit: Annotated[str, "JSON|@FILE|-", "That call's arguments instead."] = "",
    steps: Annotated[Natural, "Raise the limit of steps to N."] = 0,
    history_bytes: Annotated[Natural, "--bytes", "Raise the limit of the history to N bytes."] = 0,
    children: Annotated[Natural, "Raise the limit of started runs to N."] = 0,
    tokens: Annotated[Natural, "Raise the budget to N tokens."] = 0,
    usd: Annotated[str, "2.50", "Raise the budget to so many dollars."] = "0",
    calls: Annotated[Natural, "Raise the budget to N calls."] = 0,
    deadline: Annotated[str, "2h|TIME|none", "When it fails if it is not over."] = "",
    reason: Annotated[str, "Why; it stays in the history."] = "",
    agent: Annotated[str, "All failed runs of this agent."] = "",
    code: Annotated[str, "All that failed with this code."] = "",
    since: Annotated[str, "2h|TIME", "All that failed since then."] = "",
    yes: Annotated[bool, "Do it, and do not ask."] = False,
    operator: Operator,
) -> None:
    """Retry a failed run where it failed, or a stalled one.

    What a failed run has done stays done. With --from the steps before STEP stay, and that one and all after it are
    done again, as new steps. Many runs at once are named by --agent, --code and --since: without --yes they are shown.

    Example: refold run retry --agent order --code timeout --since 2h --yes
    """
    text = canonical.dumps(json_value(edit, "--edit")) if edit else ""
    nano = nano_usd(dollars(usd, "--usd"))
    changes = Changes(step, text, steps, history_bytes, _deadline(deadline), children, reason, tokens, nano, calls)
    if run and (agent or code or since):
        raise UsageError("a run and filters name different things", hint="give one of them")
    if run:
        _retry_one(run, changes, operator, yes=yes)
    elif agent or code or since:
        if step:
            raise UsageError("--from is about the steps of one run", hint="name the run")
        _retry_many(Selector(agent=agent, code=code, since_ms=since_ms(since)), changes, operator, yes=yes)
    else:
        raise UsageError("no run is named", hint="refold run retry RUN, or --agent, --code, --since for many")


def _retry_one(run: str, changes: Changes, operator: Operator, *, yes: bool) -> None:
    found, actor = operator.runs.get(run), operator.actor or login()
    words = f"run [bold]{output.escape(run)}[/] goes on, it"
    if found.status == "stalled":
        if changes != Changes():
            raise UsageError(f"run {run} is stalled, not failed", hint="only its code is run again; leave options out")
        operator.tell_answer(operator.perform(retry_code(found, actor)), words)
        return
    operation = redrive(found.state, actor, changes)
    again = left_behind(found.state, changes.from_step) if changes.from_step else []
    if again and not yes and not typer.confirm(_warning(again)):
        output.say("nothing was retried")
        fail(FAILED)
    kept = changes.from_step - 1 if changes.from_step else stays(found.state)
    operator.tell_answer(operator.perform(operation), words, Redriven, kept=kept)


def _retry_many(which: Selector, changes: Changes, operator: Operator, *, yes: bool) -> None:
    found = selected(operator.runs.all(), which, "retry")
    if not yes:
        rows = [_row(run, "would be retried") for run in found]
        operator.tell({"dry_run": True, "count": len(rows), "runs": rows}, lambda: _show(rows))
        return
    actor = operator.actor or login()
    outcomes = operator.perform_all([redrive(run.state, actor, changes) for run in found], "retry failed runs")
    rows = [_row(run, outcomes[run.state.run_id].what) for run in found]
    late = sum(row["outcome"] != "accepted" for row in rows)
    text = f"{output.counted(len(rows) - late, 'run')} of {len(rows)} go on"
    hint = "; of the others nothing was heard: `refold deadletter list` may tell" if late else ""
    operator.tell({"dry_run": False, "count": len(rows), "runs": rows}, text + hint)
    if late:
        fail(FAILED)


def _row(run: Run, outcome: str) -> output.Data:
    row, failure = row_of(run), ending_of(run).failed
    return {
        "run_id": row.run_id,
        "agent": row.agent,
        "code": failure.code if failure else "",
        "message": failure.message if failure else "",
        "failed_ms": row.at_ms,
        "kept": stays(run.state),
        "outcome": outcome,
    }


def _show(rows: list[output.Data]) -> None:
    if not rows:
        output.say("no failed run is meant by that")
        return
    columns = ("run", "agent", "code", "failed (UTC)", "steps kept", "message")
    cells = [
        (
            *map(output.escape, (row["run_id"], row["agent"], row["code"])),
            output.moment(row["failed_ms"]),
            str(row["kept"]),
            output.escape(row["message"], 80),
        )
        for row in rows
    ]
    output.print_table(columns, cells)
    output.say(f"{output.counted(len(rows), 'run')} would go on: say it once more with --yes")


def _warning(again: list[Done]) -> str:
    many = ", ".join(f"step {done.step} {done.tool} ({done.effect})" for done in again[:10])
    more = f" and {len(again) - 10} more" if len(again) > 10 else ""
    return (
        f"These may have had their effect, and would be made once more if the code asks for them: {many}{more}. Go on?"
    )


def _deadline(text: str) -> int:
    return -1 if text == "none" else until_ms(text, "--deadline")
