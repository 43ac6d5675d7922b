"""What people see of a run that is paused, and what they hear who pause one or let it go on."""

from __future__ import annotations

import pytest

from refold.cli.views import runs as views
from refold.client.operations.operation import one
from refold.client.operations.run import By, word
from refold.client.operations.runs import RunQuery, Runs, selected
from refold.client.reading.run import info_of, row_of
from refold.core.errors import ConflictError
from refold.core.events import (
    Event,
    Failure,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRequested,
    RunRetried,
    RunStarted,
    RunSuspended,
    RunUnpaused,
)
from refold.core.messages import RunOperation, RunSignal
from tests.cli.chronicle import Chronicle, requested
from tests.cli.test_waiting_seen import EVIL, Planner, seen

PAUSED, OVER = RunPaused("op", "look first"), RunUnpaused("op")


def test_a_paused_run_says_who_has_paused_it_and_why() -> None:
    said = seen(RunPaused(EVIL, EVIL), RunSuspended("paused", EVIL))

    assert "paused by a<U+001B>[2Jb<U+202E>c (operator, 2023-11-14T22:13:20" in said
    assert "refold run resume r" in said
    assert "\x1b" not in said


def test_a_run_that_goes_on_says_nothing_of_a_pause() -> None:
    assert "paused" not in seen(PAUSED, OVER)


def test_a_run_that_is_paused_with_another_names_it() -> None:
    chronicle = Chronicle()
    chronicle.add("r.1", requested(), [RunPaused("op", "", "parent")], emit=False)

    [run] = Runs(chronicle.reader).all()

    assert row_of(run).pauses[0].role == "parent"
    assert views.pause_lines(info_of(run))[1] == "    refold run resume r"


def told(*events: Event) -> Chronicle:
    """A log with a run to which these events have happened."""
    chronicle = Chronicle()
    begun = [RunRequested("deploy", "{}", "digest", "seed", "ann"), RunStarted("1")]
    chronicle.add("r", [*begun, *events], emit=False)
    return chronicle


def say(chronicle: Chronicle, kind: str, *fresh: Event) -> str:
    """What becomes of a word of who asked for the run, with a planner that answers with these events."""
    hand, runs = Planner(chronicle), Runs(chronicle.reader)
    hand.fresh = fresh
    return one(runs, hand, word(runs.get("r").state, kind, By("ann")), 5).what


def test_who_pauses_a_run_hears_that_it_is() -> None:
    assert say(told(), "pause", PAUSED) == "accepted"
    assert say(told(PAUSED), "pause") == "known"
    assert say(told(RunPaused("ann", "", "requester")), "resume", RunUnpaused("ann", "requester")) == "accepted"


def test_a_run_that_was_retried_is_paused_as_any_other() -> None:
    chronicle = told(RunFailed(Failure("raised", "boom")))
    chronicle.add("r", [RunRetried("op")], emit=False)

    assert say(chronicle, "pause", PAUSED) == "accepted"


@pytest.mark.parametrize(
    ("events", "kind", "says"),
    [
        ((RunCompleted("1"),), "pause", "is completed already"),
        ((RunCompleted("1"),), "resume", "is completed already"),
        ((), "resume", "is not paused"),
        ((RunPaused("op", "", "parent"),), "resume", "is paused with"),
    ],
)
def test_who_cannot_be_obeyed_hears_why(events: tuple[Event, ...], kind: str, says: str) -> None:
    with pytest.raises(ConflictError, match=says):
        say(told(*events), kind)


def test_what_an_operator_has_paused_is_resumed_as_an_operator() -> None:
    state = Runs(told(PAUSED).reader).get("r").state
    own = Runs(told(RunPaused("ann", "", "requester")).reader).get("r").state

    assert isinstance(word(state, "resume", By("ann")).message, RunOperation)
    assert isinstance(word(own, "resume", By("ann")).message, RunSignal)
    assert isinstance(word(state, "pause", By("ann")).message, RunSignal)


def test_of_many_those_are_resumed_that_are_paused_by_themselves() -> None:
    chronicle = Chronicle()
    chronicle.add("r", requested(), [PAUSED], emit=False)
    chronicle.add("r.1", requested(), [RunPaused("op", "", "parent")], emit=False)
    chronicle.add("r.2", requested(), [PAUSED], emit=False)
    chronicle.add("s", requested(), emit=False)

    meant = [run.state.run_id for run in selected(Runs(chronicle.reader).all(), RunQuery(), "resume")]

    assert meant == ["r", "r.2"]


def test_a_filter_names_an_agent_too() -> None:
    run = Runs(told().reader).get("r")
    agent = run.state.request.agent if run.state.request else ""

    assert RunQuery(agent=agent).matches(run)
    assert not RunQuery(agent="another").matches(run)
