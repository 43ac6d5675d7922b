"""What people say of a run that is held is said of that hold, and of no later one."""

from __future__ import annotations

from refold.core.events import RunFailed
from refold.core.ids import RunId, hold_key
from refold.core.messages import RunOperation
from refold.core.planning.verdict import Refuse
from refold.core.run.state import RunState
from refold.core.wire import codec
from refold.engine.planner.agents.stalls import Holds, Stall
from refold.engine.runtime.lanes import Journal

RUN = RunId("run")


def test_what_was_said_before_the_hold_ends_nothing() -> None:
    holds = Holds("p", Journal(), lambda run, hold: None)
    said = RunOperation(RUN, "fail-1", "fail", "{}", "op")
    holds.stall(RUN, Stall("ImportError", "no module", "", "", "code", passing=False), now=1_000)

    assert isinstance(holds.judge(said, RunState(RUN), sent_ms=999), Refuse)
    ruling = holds.judge(said, RunState(RUN), sent_ms=1_000)
    assert isinstance(ruling, list)
    assert isinstance(ruling[0], RunFailed)


def test_a_hold_that_was_read_holds_since_the_log_has_it() -> None:
    sent: list[object] = []
    first = Holds("p", Journal(), lambda run, hold: sent.append(hold))
    first.stall(RUN, Stall("ImportError", "no module", "", "", "code", passing=False), now=9_000)
    holds = Holds("q", Journal(), lambda run, hold: None)
    holds.follow(hold_key(RUN), codec.encode(sent[0]), at_ms=500)  # the clock of its writer was wrong

    assert isinstance(holds.judge(RunOperation(RUN, "f", "fail", "{}", "op"), RunState(RUN), sent_ms=600), list)


def test_a_hold_is_not_later_than_it_says_where_the_clock_of_its_topic_is_ahead() -> None:
    sent: list[object] = []
    first = Holds("p", Journal(), lambda run, hold: sent.append(hold))
    first.stall(RUN, Stall("ImportError", "no module", "", "", "code", passing=False), now=500)
    holds = Holds("q", Journal(), lambda run, hold: None)
    holds.follow(hold_key(RUN), codec.encode(sent[0]), at_ms=30_500)

    assert isinstance(holds.judge(RunOperation(RUN, "f", "fail", "{}", "op"), RunState(RUN), sent_ms=600), list)
