"""What people see of what a run waits for, and what they hear who have told it something."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from refold.cli.views import runs
from refold.client.letters import home_of
from refold.client.operations.operation import OperationRow, many, one
from refold.client.operations.run import (
    answer_callback,
    answered,
    signal,
    signal_message,
    step_of,
    update,
    update_result,
)
from refold.client.operations.runs import Runs
from refold.client.reading.run import info_of
from refold.core.errors import (
    ClosedError,
    ConflictError,
    MalformedError,
    NotFoundError,
    ReusedIdError,
    TimedOutError,
    UsageError,
)
from refold.core.events import (
    CallbackCompleted,
    CallbackCreated,
    Cause,
    Event,
    Failure,
    MatchFailed,
    RunCompleted,
    SignalAnswered,
    SignalDropped,
    SignalReceived,
    WaitEnded,
    WaitStarted,
)
from refold.core.ids import RunId, callback_digest, callback_token, home
from refold.core.messages import DeadLetter, RunOperation, RunRequest, RunSignal
from refold.core.wire import codec
from refold.engine.ports.log import Record
from tests.cli.chronicle import NOW, Chronicle, Hand, requested

EVIL = "a\x1b[2Jb\u202ec"
TOKEN = callback_token(RunId("r"), "seed", 1)
MADE = CallbackCreated(1, "paid", callback_digest(TOKEN), until_ms=NOW + 9_000)


def seen(*events: Event) -> str:
    """What `refold run show` draws of a run to which these events happen."""
    chronicle = Chronicle()
    chronicle.add("r", requested(), list(events), emit=False)
    console = Console(width=1_000, emoji=False)
    with console.capture() as captured:
        console.print(runs.run_view(info_of(Runs(chronicle.reader).get("r"))))
    return captured.get()


def test_a_run_says_what_it_waits_for() -> None:
    said = seen(MADE, WaitStarted(2, "go", "data.n == 1"), MatchFailed(2, "s", "no such key: n"))

    assert "waits for whoever has its token until 2023-11-14T22:13:29" in said
    assert "waits for a signal go where data.n == 1" in said
    assert "its match had no value for a signal: no such key: n" in said
    assert TOKEN not in said


def test_it_says_who_has_answered_and_what_is_kept_or_was_dropped() -> None:
    said = seen(
        MADE,
        CallbackCompleted(1, "7", "k-1", "psp"),
        WaitStarted(2, "go"),
        SignalReceived("s-1", "go", "1", EVIL),
        WaitEnded(2, "s-1"),
        *(SignalReceived(f"n-{number}", "other", "1") for number in range(7)),
        SignalDropped(EVIL, "other", 70_000),
    )

    assert "by psp, k-1" in said
    assert "by a<U+001B>[2Jb<U+202E>c, s-1" in said
    assert said.count("kept signal") == 5
    assert "and 2 more" in said
    assert "dropped for want of room: signal other of 70,000 bytes a<U+001B>" in said
    assert "\x1b" not in said


class Planner(Hand):
    """A hand that answers what it sends with these events."""

    fresh: tuple[Event, ...] = ()

    def send(self, message: RunRequest | RunSignal | RunOperation) -> tuple[int, int]:
        """See `Sender`."""
        partition, offset = super().send(message)
        if self.fresh:
            self.chronicle.add("r", list(self.fresh), emit=False, cause=Cause("run-signalled", partition, offset))
        return partition, offset


def tell(before: tuple[Event, ...], fresh: tuple[Event, ...], said: RunSignal) -> tuple[str, int]:
    """What becomes of what is said to a run to which something has happened, when a planner answers so."""
    chronicle = Chronicle()
    chronicle.add("r", requested(), *([list(before)] if before else []), emit=False)
    hand = Planner(chronicle)
    hand.fresh = fresh
    runs = Runs(chronicle.reader)
    operation = (answer_callback if said.callback else signal)(runs.get("r").state, said)
    done = one(runs, hand, operation, 0.3)
    return done.what, step_of(done.run.state, said)


GO = signal_message("r", "go", 1, signal_id="s-1", actor="ann")
CAME = SignalReceived("s-1", "go", "1", "ann")


def test_whoever_tells_a_run_something_hears_who_has_it_now() -> None:
    waits = (WaitStarted(1, "go"),)

    taken = tell(waits, (CAME, WaitEnded(1, "s-1")), GO)
    kept = tell((), (CAME,), GO)
    known = tell((*waits, CAME, WaitEnded(1, "s-1"), RunCompleted("1")), (), GO)

    assert [taken, kept, known] == [("accepted", 1), ("accepted", 0), ("known", 1)]


@pytest.mark.parametrize("had", [(CAME,), (WaitStarted(1, "go"), CAME, WaitEnded(1, "s-1"))])
def test_another_signal_under_the_same_id_is_a_conflict_that_names_the_first(had: tuple[Event, ...]) -> None:
    other = signal_message("r", "go", 2, signal_id="s-1", actor="ann")

    with pytest.raises(ConflictError, match="signal s-1 of run r is go with 1 already"):
        tell(had, (), other)


def test_who_finds_no_room_hears_it() -> None:
    with pytest.raises(ConflictError, match="has no room for it"):
        tell((), (SignalDropped("s-1", "go", 300, "ann"),), GO)


def test_who_comes_too_late_hears_it() -> None:
    with pytest.raises(ConflictError, match="is completed"):
        tell((RunCompleted("1"),), (), GO)
    with pytest.raises(ConflictError, match="is completed"):
        tell((MADE, RunCompleted("1")), (), answered(TOKEN, 7, actor="psp"))


def test_an_answer_that_was_given_before_is_known_for_ever() -> None:
    done = (MADE, CallbackCompleted(1, "7", "k-1", "psp"), RunCompleted("7"))

    same = tell(done, (), answered(TOKEN, 7, actor="psp"))
    again = tell(done, (), answered(TOKEN, 8, key="k-1", actor="psp"))

    assert same[0] == again[0] == "known"
    with pytest.raises(ConflictError):
        tell(done, (), answered(TOKEN, 8, actor="psp"))


def ask(before: tuple[Event, ...], *fresh: Event) -> tuple[str, Any]:
    """What an update of a run gives to which something has happened, when a planner answers so."""
    chronicle = Chronicle()
    chronicle.add("r", requested(), *([list(before)] if before else []), emit=False)
    hand = Planner(chronicle)
    hand.fresh = fresh
    runs = Runs(chronicle.reader)
    done = one(runs, hand, update(runs.get("r").state, GO), 0.3)
    answer = update_result(done, GO)
    return answer.outcome, answer.failure or answer.result


TAKEN = (WaitStarted(1, "go"), CAME, WaitEnded(1, "s-1"))
ANSWER = SignalAnswered(2, "s-1", '{"a":1}')


def test_an_update_gives_the_answer_whenever_it_came() -> None:
    failed = SignalAnswered(2, "s-1", "null", Failure("ValueError", "no"))

    assert ask(TAKEN[:1], *TAKEN[1:], ANSWER) == ("accepted", {"a": 1})
    assert ask((*TAKEN, ANSWER)) == ("known", {"a": 1})
    assert ask((*TAKEN, ANSWER, RunCompleted("1"))) == ("known", {"a": 1})
    assert ask(TAKEN, failed) == ("accepted", Failure("ValueError", "no"))


def test_an_update_without_an_answer_is_waited_for_until_the_run_is_over() -> None:
    for before in ((), TAKEN[:2], TAKEN):
        with pytest.raises(TimedOutError):
            ask(before)
    with pytest.raises(ClosedError, match="is completed, and has not answered go s-1"):
        ask(TAKEN, RunCompleted("1"))
    with pytest.raises(ClosedError):
        ask((*TAKEN, RunCompleted("1")))
    with pytest.raises(ClosedError):
        ask((RunCompleted("1"),))


def test_an_answer_to_another_signal_of_this_id_is_no_answer() -> None:
    other = SignalReceived("s-1", "go", "2", "ann"), WaitEnded(1, "s-1")

    with pytest.raises(ReusedIdError):
        ask((TAKEN[0], *other, ANSWER))
    with pytest.raises(ReusedIdError):
        ask((TAKEN[0], *other))
    with pytest.raises(ConflictError, match="has no room"):
        ask((), SignalDropped("s-1", "go", 300, "ann"))


def test_a_token_that_the_run_has_not_made_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        tell((), (), answered(TOKEN, actor="psp"))
    with pytest.raises(MalformedError):
        answered("cb_nonsense", actor="psp")
    with pytest.raises(UsageError):
        signal_message("r", "a name", None, actor="ann")


def test_a_letter_with_a_token_as_its_key_is_sent_home_again() -> None:
    record = Record("run-signalled", 3, 0, TOKEN.encode(), b"{}", lambda: None)

    assert home_of(record, 4) == home("r", 4)


def test_what_became_of_a_signal_to_many_is_told_of_each() -> None:
    chronicle = Chronicle()
    for run, events in {
        "has-it": [CAME],
        "is-over": [RunCompleted("1")],
        "takes-it": [WaitStarted(1, "go")],
        "refuses": [],
        "is-silent": [],
    }.items():
        chronicle.add(run, requested(), *([events] if events else []), emit=False)
    runs, told = Runs(chronicle.reader), list[tuple[int, int]]()
    said = {
        run.state.run_id: signal_message(run.state.run_id, "go", 1, signal_id="s-1", actor="ann") for run in runs.all()
    }
    each = [
        OperationRow(said[name], signal(Runs(chronicle.reader).get("refuses").state, said[name]).judge) for name in said
    ]

    became = many(runs, Several(chronicle), each, 0, lambda *words: told.append(words))

    assert {name: (each.what, step_of(each.state, said[name])) for name, each in became.items()} == {
        "has-it": ("known", 0),
        "is-over": ("refused", 0),
        "takes-it": ("accepted", 1),
        "refuses": ("refused", 0),
        "is-silent": ("unanswered", 0),
    }
    assert "is completed" in became[RunId("is-over")].error
    assert "no room" in became[RunId("refuses")].error
    assert told == [(4, 5)]


class Several(Hand):
    """A planner that answers two of several runs."""

    def send(self, message: RunRequest | RunSignal | RunOperation) -> tuple[int, int]:
        """See `Sender`."""
        partition, offset = super().send(message)
        if message.run_id == "takes-it":
            cause = Cause("run-signalled", partition, offset)
            self.chronicle.add(message.run_id, [CAME, WaitEnded(1, "s-1")], emit=False, cause=cause)
        if message.run_id == "refuses":
            letter = DeadLetter("run-signalled", partition, offset, "no_room", "no room", b"k", b"{}", "planner", 0)
            self.chronicle.write("dead-letter", message.run_id, key=b"k", value=codec.encode(letter))
        return partition, offset
