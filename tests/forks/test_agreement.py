"""A fork without changes is the run again, wherever it is cut: the same events at the same times."""

from __future__ import annotations

from functools import cache

import pytest

from refold.core.events import Entry, Event, RunMigrated, RunStarted
from refold.core.ids import RunId
from refold.core.run import chain
from refold.lab.forks.report import ForkReport
from tests.forks.recording import Family, family_of, fork, golden_family
from tests.forks.zoo import RUNS, app
from tests.golden.agents import app as golden_app
from tests.golden.recording import kept


@cache
def recorded(name: str) -> Family:
    return family_of(RUNS[name]())


def entries(rows: list[tuple[bytes, bytes]]) -> list[Entry]:
    read = [chain.read(*row) for row in rows]
    return [found.entry for found in read if isinstance(found, chain.LogRecord)]


def differences(report: ForkReport, family: Family) -> list[str]:
    """Where the entries of a fork are others than the recorded ones; versions of code are not looked at."""
    found = []
    for run, rows in report.rows.items():
        forked = entries([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in rows])
        mine = [entry for entry in forked if not isinstance(entry.events[0], RunMigrated)]
        theirs = entries([row[1:] for row in family[RunId(run)]])[report.kept[run] :]
        found += [f"{run}: {len(mine)} entries, not {len(theirs)}"] if len(mine) != len(theirs) else []
        found += [
            f"{run}/{a.seq}: {_said(a)}, not {_said(b)}"
            for a, b in zip(mine, theirs, strict=False)
            if _said(a) != _said(b)
        ]
    return found


def _said(entry: Entry) -> tuple[int, bool, list[Event]]:
    return entry.at_ms, entry.held, [event for event in entry.events if not isinstance(event, RunStarted)]


def last(family: Family, run: str) -> int:
    return entries([row[1:] for row in family[RunId(run)]])[-1].last_seq


@pytest.mark.parametrize("name", RUNS)
def test_a_fork_at_each_event_is_the_run_again(name: str) -> None:
    family = recorded(name)

    for at in range(last(family, "r-1") + 1):
        report = fork(app, family, "r-1", at)

        assert (report.verdict, differences(report, family)) == ("same", []), at


@pytest.mark.parametrize("name", kept())
def test_a_fork_of_a_golden_run_at_each_event_is_that_run_again(name: str) -> None:
    family = golden_family(name)

    for at in range(last(family, name) + 1):
        report = fork(golden_app, family, name, at)

        assert (report.verdict, differences(report, family)) == ("same", []), at


@pytest.mark.parametrize("name", ["family", "paused"])
def test_a_child_is_forked_by_itself_as_well(name: str) -> None:
    family = recorded(name)

    for child in [run for run in family if run != "r-1"]:
        below = {run: rows for run, rows in family.items() if run == child or run.startswith(f"{child}.")}
        for at in range(last(below, child) + 1):
            report = fork(app, below, child, at)

            assert (report.verdict, report.calls) == ("same", []), at


def test_the_same_fork_twice_is_the_same_to_the_last_byte() -> None:
    for name in RUNS:
        first, second = (fork(app, recorded(name), "r-1", 4, stubs={"buy": '"x"'}) for _ in range(2))

        assert first.model_dump_json() == second.model_dump_json()
