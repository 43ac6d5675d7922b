"""The contract of `refold.ports.ledger`: what has lapsed, and what waits to be published."""

from __future__ import annotations

from refold.ports.ledger import Close, Complete, Lapsed, Release, outbox_field
from tests.contract.ledger_benches import CALL, FIELD, KEY, LAPSED, OUTBOX, Bench, ask, claim, complete, outbox_of, sent


def test_only_started_calls_past_their_lease_are_lapsed(bench: Bench) -> None:
    bench.ledger.run([claim(f"t{i}", call=f"r-{i}/1", lease_ms=0) for i in range(4)])
    bench.ledger.run(
        [
            claim("ann", call="alive/1"),
            Close(7, "default", (("key of r-1/1", "r-1/1"),)),
            Complete(7, "default", "key of r-2/1", "r-2/1", 1, "t2", True, b""),
            Release(7, "default", "key of r-3/1", "t3"),
        ]
    )

    assert ask(bench, LAPSED) == [b"request r-0/1#1"]
    assert ask(bench, Lapsed(7, "other", 100)) == []
    assert ask(bench, Lapsed(6, "default", 100)) == []


def test_lapsed_requests_are_limited(bench: Bench) -> None:
    bench.ledger.run([claim(f"t{i}", call=f"r-{i}/1", lease_ms=0) for i in range(5)])

    reply = ask(bench, Lapsed(7, "default", 3))

    assert isinstance(reply, list)
    assert len(set(reply)) == 3


def test_an_entry_that_has_expired_leaves_the_lapsed_ones_too(bench: Bench) -> None:
    bench.ledger.run([claim("ann", lease_ms=0), claim("bob", lease_ms=0, call="r-2/1")])
    bench.forget(7, KEY)

    assert ask(bench, LAPSED) == [b"request r-2/1#1"]
    assert bench.state().leased == {(7, "default"): {"key of r-2/1"}}


def test_the_outbox_is_limited_and_empties_as_fields_are_sent(bench: Bench) -> None:
    results = {outbox_field(f"r-{i}/1", 1): str(i).encode() for i in range(5)}
    bench.ledger.run([Complete(7, "default", f"k{i}", f"r-{i}/1", 1, "ann", True, str(i).encode()) for i in range(5)])

    some = outbox_of(bench, limit=3)
    assert len(some) == 3
    assert some.items() <= results.items()

    assert ask(bench, sent(*some, "unknown/1#1")) is None
    assert outbox_of(bench) == {field: result for field, result in results.items() if field not in some}


def test_an_empty_outbox_and_nothing_sent_are_fine(bench: Bench) -> None:
    assert bench.ledger.run([OUTBOX, sent(), LAPSED]) == [[], None, []]
    assert bench.ledger.run([]) == []


def test_results_of_two_attempts_do_not_displace_each_other_in_the_outbox(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), complete("ann", success=False, result=b"no")])
    bench.ledger.run([claim("bob", attempt=2), complete("bob", attempt=2)])

    assert outbox_of(bench) == {FIELD: b"no", outbox_field(CALL, 2): b'"ok"'}
