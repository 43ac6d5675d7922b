"""The contract of `refold.engine.ports.ledger`: what has lapsed, and what waits to be published."""

from __future__ import annotations

from refold.engine.ports.ledger import (
    ASIDE,
    ASIDE_MOST_BYTES,
    Busy,
    Claimed,
    Close,
    Complete,
    Lapsed,
    Release,
    Renewed,
    SetAside,
    Stored,
    Unlist,
    outbox_field,
)
from tests.contract.ledger_benches import (
    CALL,
    FIELD,
    HOUR_MS,
    KEY,
    LAPSED,
    OUTBOX,
    Bench,
    ask,
    claim,
    complete,
    outbox_of,
    renew,
    sent,
)


def test_only_started_calls_past_their_lease_are_lapsed(bench: Bench) -> None:
    bench.ledger.run([claim(f"t{i}", call=f"r-{i}/1", lease_ms=0) for i in range(4)])
    bench.ledger.run(
        [
            claim("ann", call="alive/1"),
            Close(7, "default", (("key of r-1/1", "r-1/1", 0),)),
            Complete(7, "default", "key of r-2/1", "r-2/1", 1, "t2", True, b""),
            Release(7, "default", "key of r-3/1", "t3"),
        ]
    )

    assert ask(bench, LAPSED) == [("key of r-0/1", b"request r-0/1#1")]
    assert ask(bench, Lapsed(7, "other", 100)) == []
    assert ask(bench, Lapsed(6, "default", 100)) == []


def test_a_lease_further_ahead_than_one_can_be_has_lapsed(bench: Bench) -> None:
    """The clock of the ledger was a day ahead when it was given, and was corrected."""
    bench.ledger.run([claim("ann", lease_ms=24 * HOUR_MS), claim("bob", call="r-2/1", lease_ms=HOUR_MS - 1)])

    assert ask(bench, LAPSED) == [(KEY, f"request {CALL}#1".encode())]
    assert ask(bench, claim("zoe")) == Claimed("ann")
    assert isinstance(ask(bench, claim("zoe", call="r-2/1")), Busy)


def test_a_process_ends_the_leases_of_those_before_it_under_its_name_and_of_nobody_else(bench: Bench) -> None:
    owners = ["i1/e-1", "i2/e-1", "i1/e-2", "", "i1/x/e-1", "i1/e-10", "e-1"]
    claims = [claim(f"t{i}", call=f"r-{i}/1")._replace(owner=owner) for i, owner in enumerate(owners)]
    bench.ledger.run([*claims, Complete(7, "default", "k8", "r-8/1", 1, "t8", True, b"")])
    before = [("key of r-0/1", b"request r-0/1#1")]

    assert ask(bench, LAPSED) == []
    assert ask(bench, Lapsed(7, "default", 100, "i2/e-1")) == before
    assert ask(bench, LAPSED) == before, "it has lapsed for whoever asks"
    assert ask(bench, claim("t9", call="r-0/1")._replace(owner="i2/e-1")) == Claimed("t0")
    assert ask(bench, Lapsed(7, "default", 100, "i2/e-1")) == []
    assert isinstance(ask(bench, claim("t9", call="r-3/1")), Busy)


def test_who_keeps_a_lease_says_whose_it_is_from_then_on(bench: Bench) -> None:
    heir = Lapsed(7, "default", 100, "i2/e-1")
    bench.ledger.run([claim("ann")._replace(owner="i1/e-1"), renew("ann")])
    assert ask(bench, heir) == []

    bench.ledger.run([renew("ann")._replace(owner="i1/e-1")])
    assert ask(bench, heir) == [(KEY, f"request {CALL}#1".encode())]
    assert ask(bench, renew("ann")) == Renewed(closed=False), "who lives on keeps it, until somebody has claimed it"
    assert ask(bench, heir) == []


def test_lapsed_requests_are_limited(bench: Bench) -> None:
    bench.ledger.run([claim(f"t{i}", call=f"r-{i}/1", lease_ms=0) for i in range(5)])

    reply = ask(bench, Lapsed(7, "default", 3))

    assert isinstance(reply, list)
    assert len(set(reply)) == 3


def test_an_entry_that_has_expired_leaves_the_lapsed_ones_too(bench: Bench) -> None:
    bench.ledger.run([claim("ann", lease_ms=0), claim("bob", lease_ms=0, call="r-2/1")])
    bench.forget(7, KEY)

    assert ask(bench, LAPSED) == [("key of r-2/1", b"request r-2/1#1")]
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


def test_what_is_set_aside_is_found_no_more_and_its_entry_is_taken_over(bench: Bench) -> None:
    bench.ledger.run([claim("ann", lease_ms=0), claim("bob", call="r-2/1"), complete_of("r-2/1", "bob")])

    aside = SetAside(7, "default", leases=(KEY,), fields=(outbox_field("r-2/1", 1),))
    assert bench.ledger.run([aside, aside]) == [None, None]

    assert bench.ledger.run([LAPSED, OUTBOX]) == [[], []]
    assert bench.aside() == {f"entry:{KEY}": b"request r-1/2#1", "result:r-2/1#1": b"done"}
    assert ask(bench, claim("eve")) == Claimed("ann")
    assert ask(bench, claim("eve", call="r-2/1")) == Stored(b"done")


def test_an_unlisted_lease_lapses_no_more_and_its_entry_is_taken_over(bench: Bench) -> None:
    bench.ledger.run([claim("ann", lease_ms=0), claim("bob", lease_ms=0, call="r-2/1")])

    assert ask(bench, Unlist(7, "default", (KEY,))) is None

    assert ask(bench, LAPSED) == [("key of r-2/1", b"request r-2/1#1")]
    assert bench.aside() == {}
    assert ask(bench, claim("eve")) == Claimed("ann")


def test_a_broken_entry_is_set_aside_whole(bench: Bench) -> None:
    bench.ledger.run([claim("ann")])

    assert ask(bench, SetAside(7, "default", broken=(KEY,))) is None

    assert bench.state().entries == {}
    assert ask(bench, claim("bob")) == Claimed()


def test_what_is_set_aside_is_bounded(bench: Bench) -> None:
    most = ASIDE + 5
    bench.ledger.run([claim(f"t{i}", call=f"r-{i}/1", lease_ms=0) for i in range(most)])
    bench.ledger.run([complete_of("big/1", "ann", b"x" * (ASIDE_MOST_BYTES + 1))])

    ask(bench, SetAside(7, "default", fields=("big/1#1",)))
    ask(bench, SetAside(7, "default", leases=tuple(f"key of r-{i}/1" for i in range(most))))

    assert len(bench.aside()) == ASIDE
    assert len(bench.aside()["result:big/1#1"]) == ASIDE_MOST_BYTES
    assert ask(bench, LAPSED) == []


def complete_of(call: str, token: str, result: bytes = b"done") -> Complete:
    return Complete(7, "default", f"key of {call}", call, 1, token, True, result)
