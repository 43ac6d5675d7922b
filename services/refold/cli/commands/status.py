"""`refold status`: living services, their backlog, and work for people."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from refold.cli import output
from refold.cli.platform import Shell
from refold.cli.recorded import views_of
from refold.client.letters import letters_in
from refold.client.reading.member import Workers
from refold.client.reading.run import row_of
from refold.core.planning.windows import DAY_MS
from refold.core.topics import DEAD_LETTERS
from refold.engine.runtime.clock import clock_ms

LATE_S = 60.0
"""Age from which an untaken request or call needs people."""
# Older dead letters stay in their topic for two weeks, whatever was done about them.
_NEEDS = {
    "stalled": "runs stalled; refold run list --status stalled",
    "doubts": "calls in doubt; refold run list --status doubt",
    "held": "calls on hold; refold run list --status held",
    "questions": "questions wait for people; refold approval list",
    "dead_letters": "dead letters of the last day; refold deadletter list",
}


def status(*, shell: Shell) -> None:
    """Show live services, their backlogs, and problems that need people. The exit code is 1 if there are any.

    Killed processes leave their group after REFOLD_KAFKA__SESSION_TIMEOUT_MS, 10 s by default.
    """
    workers, views = shell.platform.workers(), views_of(shell.platform.settings, from_log=False)
    counts, stopped = views.needs_people(shell.platform.settings, clock_ms() - DAY_MS) if views else (None, [])
    counts = counts or _count_in_log(shell)
    needs = [*_late(workers), *stopped, *(f"{count} {_NEEDS[name]}" for name, count in counts.items() if count)]
    row = {"ok": not needs, "needs": needs, **counts, **workers.dump()}
    shell.print(row, lambda: _print(workers, counts, needs), ok=not needs)


def _late(workers: Workers) -> Iterator[str]:
    """Problems of services: no process, partitions that none serves, or inputs that have waited longer than LATE_S."""
    for group in workers.groups:
        if group.missing:
            where = f"partitions {', '.join(map(str, group.unserved))}" if group.members else "none is there"
            yield f"no {group.name}: {where}; {group.command}"
        elif group.oldest_s > LATE_S and group.role != "approval":
            yield f"{group.name}: {group.waiting} wait for it, one for {group.oldest_s:.0f} s; `refold worker list`"


def _count_in_log(shell: Shell) -> dict[str, int]:
    counts = Counter[str](dict.fromkeys(_NEEDS, 0))
    for run in shell.all_runs():
        if not run.state.over:
            row = row_of(run)
            counts["stalled"] += run.hold is not None
            counts.update({"doubts": len(row.in_doubt), "held": len(row.held), "questions": len(row.approvals)})
    letters = letters_in(chain.from_iterable(map(shell.runs.reader.scan, DEAD_LETTERS)))
    counts["dead_letters"] = sum(letter.at_ms >= clock_ms() - DAY_MS for _, letter in letters)
    return dict(counts)


def _print(workers: Workers, counts: dict[str, int], needs: Iterable[str]) -> None:
    cells = []
    for group in workers.groups:
        alive = str(group.members) if group.members else "[red]none[/]" if group.needed else "none"
        oldest = f", oldest {output.duration(int(group.oldest_s * 1000))}" if group.waiting else ""
        lag = ", ".join(f"{topic} {records}" for topic, records in sorted(group.lag.items()) if records)
        waiting = f"{group.waiting}{oldest}"
        cells.append((output.escape(group.name), alive, str(len(group.unserved) or ""), waiting, output.escape(lag)))
    output.print_table(("service", "alive", "partitions unserved", "waiting", "lag"), cells)
    output.say("  ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items()))
    for need in needs:
        output.say(f"[red]{output.escape(need)}[/]")
