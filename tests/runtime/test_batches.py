"""What a service asks of the ledger comes back to who asked, also when the ledger was away."""

from __future__ import annotations

from itertools import count

from refold.engine.ports.effects import Answers, AskLedger, Effect, Now
from refold.engine.ports.ledger import Close, Lapsed, Unpublished
from refold.engine.runtime.lanes import Batches

CLOSE = Close(0, "default", "r1/3")


def batches() -> Batches[str]:
    return Batches(count(1).__next__, resend_ms=100)


def sent(effects: list[Effect]) -> AskLedger:
    [batch] = effects
    assert isinstance(batch, AskLedger)
    return batch


def test_every_reply_comes_to_who_asked() -> None:
    ours = batches()
    ours.ask(CLOSE, "a")
    ours.ask(Lapsed(0, "default", 5))
    batch = sent(ours.send(Now(0, 0)))

    answered = ours.answered(Answers(batch.batch, [None, [("key", b"request")]]), Now(0, 0))

    assert answered == [("a", CLOSE, None), (None, Lapsed(0, "default", 5), [("key", b"request")])]
    assert not ours


def test_a_batch_of_another_service_is_passed_over() -> None:
    ours = batches()
    ours.ask(CLOSE, "a")
    batch = sent(ours.send(Now(0, 0)))

    assert ours.answered(Answers(batch.batch + 1, [None, None]), Now(0, 0)) == []
    assert ours


def test_what_has_an_unknown_outcome_is_asked_again_later_but_queries_are_not() -> None:
    ours = batches()
    ours.ask(Lapsed(0, "default", 5))
    ours.ask(CLOSE, "a")
    ours.ask(Unpublished(0, "default", 5))
    batch = sent(ours.send(Now(0, 0)))

    assert ours.answered(Answers(batch.batch, None), Now(0, 10)) == []
    early = ours.send(Now(0, 109))
    again = sent(ours.send(Now(0, 110)))

    assert early == []
    assert again.operations == [CLOSE]
    assert ours.answered(Answers(again.batch, [None]), Now(0, 110)) == [("a", CLOSE, None)]


def test_nothing_waits_for_queries_that_were_lost() -> None:
    ours = batches()
    ours.ask(Unpublished(0, "default", 5))
    batch = sent(ours.send(Now(0, 0)))

    ours.answered(Answers(batch.batch, None), Now(0, 10))

    assert not ours
