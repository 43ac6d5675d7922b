"""The contract of `refold.engine.ports.ledger`: the same key in another life of its run."""

from __future__ import annotations

import pytest

from refold.engine.ports.ledger import Busy, Claim, Claimed, Close, Stored, outbox_field
from tests.contract.ledger_benches import CALL, CLOSE, HOUR_MS, KEY, OUTBOX, Bench, ask, claim, complete, sent

OTHER = "r-1/9"


def elsewhere(token: str, *, attempt: int = 1) -> Claim:
    """The claim of the same effect by a run whose history has other numbers."""
    return claim(token, attempt=attempt)._replace(call=OTHER)


def test_a_success_is_the_result_of_another_call_with_its_key(bench: Bench) -> None:
    bench.ledger.run([claim("ann", attempt=3), complete("ann", attempt=3), sent(outbox_field(CALL, 3))])

    assert ask(bench, elsewhere("bob")) == Stored(b'"ok"')
    assert ask(bench, OUTBOX) == []


def test_a_live_lease_keeps_another_call_with_its_key_away(bench: Bench) -> None:
    ask(bench, claim("ann", attempt=3))

    assert isinstance(ask(bench, elsewhere("bob")), Busy)


@pytest.mark.parametrize("end", ["lapses", "fails", "is closed", "is closed with its result"])
def test_what_another_call_left_under_the_key_is_taken_over(bench: Bench, end: str) -> None:
    ask(bench, claim("ann", attempt=3, lease_ms=0 if end == "lapses" else HOUR_MS))
    if end == "fails":
        ask(bench, complete("ann", attempt=3, success=False))
    elif end == "is closed":
        ask(bench, CLOSE)
    elif end == "is closed with its result":
        bench.ledger.run([complete("ann", attempt=3), CLOSE])

    assert ask(bench, elsewhere("bob")) == Claimed("ann")
    assert bench.state().entries[7, KEY]["call"] == OTHER


def test_the_tombstone_of_another_call_with_its_key_closes_nothing(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), Close(7, "default", ((KEY, OTHER, 0),))])

    assert isinstance(ask(bench, claim("bob")), Busy)
