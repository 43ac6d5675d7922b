"""The client reads runs and learns what became of its inputs from the topics alone."""

from __future__ import annotations

import pytest

from refold.client.operations.operation import follow_up, one, publish_input
from refold.client.operations.run import By, Settlement, settle_call, start_run, word
from refold.client.operations.run import doubted as question_of
from refold.client.operations.runs import Runs
from refold.core.errors import ConflictError, MalformedError, NotFoundError, TimedOutError, UsageError
from refold.core.events import (
    ApprovalRequested,
    AttemptFailed,
    CallDispatched,
    Cause,
    DoubtResolved,
    Event,
    Failure,
    Requirement,
    RunCancelled,
    RunRequested,
    RunStarted,
    SleepStarted,
)
from refold.core.ids import RunId, home
from refold.core.messages import DeadLetter, Hold, RunOperation, RunRequest, RunSignal
from refold.core.wire import codec
from tests.cli.chronicle import NOW, Chronicle, Hand, completed, doubted, ended, proposed, requested

REQUEST = RunRequest("r", "deploy", "{}")


@pytest.fixture
def chronicle() -> Chronicle:
    """Give empty topics."""
    return Chronicle()


@pytest.fixture
def runs(chronicle: Chronicle) -> Runs:
    """Give the runs in the topics."""
    return Runs(chronicle.reader)


def letter(chronicle: Chronicle, position: Cause, code: str) -> None:
    """What a planner leaves for an input that it cannot use."""
    content = DeadLetter(position.topic, position.partition, position.offset, code, "no", b"r", b"{}", "planner", NOW)
    chronicle.write("dead-letter", "r", key=b"r", value=codec.encode(content))


def test_a_run_is_held_by_whatever_lies_under_the_key_of_its_hold(chronicle: Chronicle, runs: Runs) -> None:
    chronicle.add("r", requested())
    chronicle.add("other", requested())
    chronicle.write("run-snapshot", "r", key=b"hold/r", value=b"\0of a newer version")

    assert [(run.state.run_id, run.status) for run in runs.all()] == [("r", "stalled"), ("other", "running")]
    assert runs.get("r").hold == Hold(RunId("r"), "stalled", "unreadable", "its hold cannot be read by this version")


def test_a_run_is_told_step_by_step(chronicle: Chronicle, runs: Runs) -> None:
    failed = AttemptFailed(1, 1, Failure("net", "gone"), unknown=True, retry_ms=NOW + 9)
    again = [failed], [CallDispatched(1, 2, NOW + 60_000)], [CallDispatched(1, 2, NOW + 90_000)]
    chronicle.add("r", requested(), proposed(1), *again, completed(1), [SleepStarted(2, NOW + 5)])

    found = runs.get("r")

    call, sleep = found.timeline.steps
    assert [(each.number, each.dispatches, each.status) for each in call.attempts] == [
        (1, 1, "unknown"),
        (2, 2, "running"),
    ]
    assert (call.status, call.result, call.call_id) == ("completed", '"ok"', "r/3")
    assert (sleep.kind, sleep.status, sleep.until_ms) == ("sleep", "sleeping", NOW + 5)


def test_void_records_are_kept_apart(chronicle: Chronicle, runs: Runs) -> None:
    chronicle.add("r", requested())
    chronicle.void("r")

    found = runs.get("r")

    assert len(found.records) == 1
    assert [judged.void for judged in found.void] == ["raced"]


def test_an_unknown_run_is_not_found(runs: Runs) -> None:
    with pytest.raises(NotFoundError, match="there is no run r"):
        runs.get("r")


def test_a_start_that_was_taken_is_accepted(chronicle: Chronicle, runs: Runs) -> None:
    position = publish_input(Hand(chronicle), REQUEST)
    chronicle.add("r", requested())

    assert follow_up(runs, start_run(REQUEST), position, 0).what == "accepted"


def test_an_equal_start_is_known_and_another_a_conflict(chronicle: Chronicle, runs: Runs) -> None:
    publish_input(Hand(chronicle), REQUEST)
    chronicle.add("r", requested())
    second = publish_input(Hand(chronicle), REQUEST)

    assert follow_up(runs, start_run(REQUEST), second, 0).what == "known"
    with pytest.raises(ConflictError, match="exists with other input"):
        follow_up(runs, start_run(RunRequest("r", "deploy", '{"a":1}')), second, 0)


def test_a_refused_input_says_why(chronicle: Chronicle, runs: Runs) -> None:
    position = publish_input(Hand(chronicle), REQUEST)
    letter(chronicle, position, "malformed")

    with pytest.raises(UsageError, match="the input was refused: no"):
        follow_up(runs, start_run(REQUEST), position, 5)


def test_nobody_answers_in_time(chronicle: Chronicle, runs: Runs) -> None:
    with pytest.raises(TimedOutError, match="the log does not know it yet"):
        one(runs, Hand(chronicle), start_run(REQUEST), 0)


def test_a_call_in_doubt_becomes_an_operation(chronicle: Chronicle, runs: Runs) -> None:
    chronicle.add("r", requested(), proposed(1, "once"), doubted(1))

    signal = settle_call(runs.get, "r/3", Settlement("happened", {"b": 1}, "seen"), "ann").message
    assert isinstance(signal, RunOperation)

    assert (signal.kind, signal.run_id, signal.actor) == ("resolve", "r", "ann")
    assert signal.data == '{"attempt":1,"comment":"seen","result":{"b":1},"step":1,"verdict":"happened"}'


@pytest.mark.parametrize(
    ("call", "error"), [("r", MalformedError), ("x/3", NotFoundError), ("r/99", NotFoundError), ("r/3", ConflictError)]
)
def test_what_is_not_in_doubt_cannot_be_resolved(
    chronicle: Chronicle, runs: Runs, call: str, error: type[Exception]
) -> None:
    chronicle.add("r", requested(), proposed(1, "once"))

    with pytest.raises(error):
        settle_call(runs.get, call, Settlement("give_up"), "ann")


def test_a_doubt_that_somebody_else_settled_otherwise_is_a_conflict(chronicle: Chronicle, runs: Runs) -> None:
    chronicle.add("r", requested(), proposed(1, "once"), doubted(1))
    signal = settle_call(runs.get, "r/3", Settlement("give_up"), "ann")
    chronicle.add("r", [DoubtResolved(1, 1, "happened", "bob"), *completed(1)])

    with pytest.raises(ConflictError, match="bob resolved step 1 of r as happened"):
        one(runs, Hand(chronicle), signal, 5)


def test_the_same_verdict_again_is_known(chronicle: Chronicle, runs: Runs) -> None:
    chronicle.add("r", requested(), proposed(1, "once"), doubted(1))
    signal = settle_call(runs.get, "r/3", Settlement("happened"), "ann")
    chronicle.add("r", [DoubtResolved(1, 1, "happened", "bob"), *completed(1)])

    assert one(runs, Hand(chronicle), signal, 5).what == "known"


def test_an_operator_s_word_may_come_to_a_question_to_people(chronicle: Chronicle, runs: Runs) -> None:
    """A policy that names people was published after the call had fallen in doubt."""
    chronicle.add("r", requested(), proposed(1, "once"), doubted(1))
    signal = settle_call(runs.get, "r/3", Settlement("did_not_happen"), "ann")
    asks = ApprovalRequested(1, 2, 2, "digest", "doubt", Requirement(["ada"]), "dev", "1", "", "0" * 64, about="doubt")
    chronicle.add("r", [asks], cause=Cause("run-operated", home("r", 4), 0))

    assert one(runs, Hand(chronicle), signal, 5).what == "asked"
    assert question_of(runs.get, "r/3") == ("push", f"r/3~{'0' * 32}")
    assert question_of(runs.get, "r/3~00") == question_of(runs.get, "r/3")
    with pytest.raises(ConflictError, match="the call r/3 waits for an approval"):
        settle_call(runs.get, "r/3", Settlement("give_up"), "ann")
    said = settle_call(runs.get, "r/3", Settlement("give_up"), "ann", though_asked=True)
    assert isinstance(said.message, RunOperation)


def test_a_refused_resolution_is_a_conflict(chronicle: Chronicle, runs: Runs) -> None:
    chronicle.add("r", requested(), proposed(1, "once"), doubted(1))
    signal = settle_call(runs.get, "r/3", Settlement("give_up"), "ann")
    letter(chronicle, Cause("run-operated", home("r", 4), 0), "conflict")

    with pytest.raises(ConflictError, match="no"):
        one(runs, Hand(chronicle), signal, 5)


def test_cancelling_needs_a_run_that_goes_on(chronicle: Chronicle, runs: Runs) -> None:
    chronicle.add("r", requested(), [RunCancelled("why", "bob")])
    chronicle.add("r2", requested(), ended())

    assert one(runs, Hand(chronicle), word(runs.get("r").state, "cancel", By("ann")), 5).what == "known"
    with pytest.raises(ConflictError, match="completed already"):
        word(runs.get("r2").state, "cancel", By("ann"))


def asked_by(requester: str) -> list[Event]:
    return [RunRequested("deploy", "{}", "digest", "seed", requester), RunStarted("1")]


@pytest.mark.parametrize(
    ("requester", "actor", "as_operator", "said"),
    [
        ("ann", "ann", False, RunSignal),
        ("Ann", "ann", False, RunSignal),
        ("ann", "ann", True, RunOperation),
        ("ann", "bob", False, RunOperation),
        ("", "", False, RunOperation),
    ],
)
def test_a_run_of_somebody_else_is_cancelled_as_an_operator(
    chronicle: Chronicle, runs: Runs, requester: str, actor: str, as_operator: bool, said: type
) -> None:
    chronicle.add("r", asked_by(requester))

    sent = word(runs.get("r").state, "cancel", By(actor, "enough", as_operator)).message

    assert isinstance(sent, said)
    assert isinstance(sent, RunSignal | RunOperation)
    assert (sent.kind, sent.run_id, sent.data, sent.actor) == ("cancel", "r", '{"reason":"enough"}', actor)
