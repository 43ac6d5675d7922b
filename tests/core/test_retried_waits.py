"""What a retry of a failed run makes of waits, signals, callbacks and the runs that it has started."""

from __future__ import annotations

import json

from refold.core.events import (
    CallFailed,
    ChildStarted,
    Failure,
    NoteRecorded,
    RunFailed,
    RunRetried,
    SignalAnswered,
    SignalReceived,
)
from refold.core.planning import redrive
from refold.core.planning.verdict import Refuse, Ruling
from tests.core.histories import RULES, Log, call, operation, started

FAILED = Failure("failed", "no")


def retried(log: Log, from_step: int = 0) -> Ruling:
    """What an operator's retry means for the run, which fails now if it has not."""
    if not log.live.over:
        log.append([RunFailed(Failure("boom", "it broke"))])
    said = operation("retry", json.dumps({"seq": log.live.head.seq, "from": from_step}))
    return redrive.retry(log.live, said, log.now, RULES)


def waited() -> Log:
    """A run that has made a callback (1), taken a signal (2) and noted something (3)."""
    log = started()
    log.callback()
    log.append([SignalReceived("s-1", "go", "1")])
    log.wait()
    log.append([NoteRecorded(3, "seen", "1")])
    return log


def test_a_signal_that_a_left_step_took_is_kept_once_more() -> None:
    log = waited()
    ruling = retried(log, from_step=2)
    assert isinstance(ruling, list)
    assert isinstance(ruling[0], RunRetried)
    log.append(ruling)
    assert list(log.live.mail.kept) == ["s-1"]
    assert not log.live.mail.taken
    assert log.live.mail.bytes > 0


def test_a_signal_that_a_step_took_which_stays_is_taken_once() -> None:
    log = waited()
    ruling = retried(log)
    assert isinstance(ruling, list)
    log.append(ruling)
    assert dict(log.live.mail.taken) == {"s-1": 2}
    assert not log.live.mail.kept


def test_the_first_answer_to_a_signal_counts_though_its_step_was_left_and_the_code_answers_again() -> None:
    log = waited()
    log.append([SignalAnswered(4, "s-1", "1")])
    ruling = retried(log, from_step=2)
    assert isinstance(ruling, list)
    log.append(ruling)
    log.append([SignalAnswered(5, "s-1", "2"), SignalAnswered(6, "s-2", "null", FAILED)])

    assert log.live.answer_to("s-1") == SignalAnswered(4, "s-1", "1")
    assert log.live.answer_to("s-2") == SignalAnswered(6, "s-2", "null", FAILED)
    assert log.live.answer_to("s-3") is None


def test_an_open_callback_is_open_again() -> None:
    log = waited()
    ruling = retried(log)
    assert isinstance(ruling, list)
    log.append(ruling)
    assert log.live.open[1].phase == "callback"


def test_a_failure_that_the_code_has_handled_stays_when_what_it_did_then_is_retried_twice() -> None:
    log = started()
    log.propose(attempts=1)
    handled = [CallFailed(1, 1, FAILED), NoteRecorded(2, "handled", "1")]
    log.append([*handled, call(3), CallFailed(3, 0, FAILED), RunFailed(FAILED)])
    first = retried(log, from_step=3)
    assert isinstance(first, list)
    log.append([*first, call(4), CallFailed(4, 0, FAILED), RunFailed(FAILED)])

    again = retried(log)

    assert isinstance(again, list)
    assert isinstance(again[0], RunRetried)
    assert again[0].again == []


def test_a_retry_that_would_wait_for_a_cancelled_child_is_refused_and_names_its_step() -> None:
    log = started()
    log.append([ChildStarted(1, "other", "null")])
    log.append([NoteRecorded(2, "seen", "1")])
    refused = retried(log)
    assert isinstance(refused, Refuse)
    assert "retry from step 1" in refused.reason
