"""The contract of `refold.engine.ports.ledger`, rule by rule, on memory and on a real Valkey."""

from __future__ import annotations

import pytest

from refold.engine.ports.ledger import (
    Busy,
    Claimed,
    Close,
    Completed,
    Fenced,
    HandOver,
    Lapsed,
    Operation,
    Release,
    Renewed,
    Stored,
    Superseded,
    outbox_field,
)
from tests.contract.ledger_benches import (
    CALL,
    CLOSE,
    FIELD,
    HOUR_MS,
    KEY,
    LAPSED,
    OUTBOX,
    Bench,
    ask,
    claim,
    complete,
    renew,
    sent,
)


def test_an_absent_call_is_claimed_and_is_no_takeover(bench: Bench) -> None:
    assert ask(bench, claim("ann")) == Claimed()

    entry = bench.state().entries[7, KEY]
    assert entry == {
        "state": "started",
        "call": CALL,
        "attempt": 1,
        "token": "ann",
        "takeover": "",
        "order": b"request r-1/2#1",
        "owner": "",
    }


def test_the_same_claim_sent_again_gets_the_first_answer(bench: Bench) -> None:
    ask(bench, claim("ann"))

    assert ask(bench, claim("ann")) == Claimed()


def test_the_same_claim_sent_again_gets_the_first_answer_even_after_its_lease(bench: Bench) -> None:
    ask(bench, claim("ann", lease_ms=0))

    assert ask(bench, claim("ann", lease_ms=0)) == Claimed()


def test_a_takeover_sent_again_is_still_a_takeover(bench: Bench) -> None:
    ask(bench, claim("ann", lease_ms=0))
    ask(bench, claim("bob"))

    assert ask(bench, claim("bob")) == Claimed("ann")


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_live_lease_keeps_others_away_and_tells_for_how_long(bench: Bench, attempt: int) -> None:
    ask(bench, claim("ann"))

    reply = ask(bench, claim("bob", attempt=attempt))

    assert isinstance(reply, Busy)
    assert HOUR_MS - 60_000 < reply.wait_ms <= HOUR_MS
    assert bench.state().entries[7, KEY]["token"] == "ann"


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_lapsed_lease_is_taken_over_by_the_same_or_a_higher_attempt(bench: Bench, attempt: int) -> None:
    ask(bench, claim("ann", lease_ms=0))

    assert ask(bench, claim("bob", attempt=attempt)) == Claimed("ann")
    assert bench.state().entries[7, KEY] == {
        "state": "started",
        "call": CALL,
        "attempt": attempt,
        "token": "bob",
        "takeover": "ann",
        "order": f"request {CALL}#{attempt}".encode(),
        "owner": "",
    }


def test_a_lease_lapses_when_its_time_is_over(bench: Bench) -> None:
    ask(bench, claim("ann", lease_ms=400))
    assert isinstance(ask(bench, claim("bob")), Busy)

    bench.pass_ms(400)

    assert ask(bench, claim("bob")) == Claimed("ann")


@pytest.mark.parametrize("lease_ms", [0, HOUR_MS])
def test_a_lower_attempt_than_the_started_one_is_superseded(bench: Bench, lease_ms: int) -> None:
    first = claim("ann", attempt=2, lease_ms=lease_ms)
    ask(bench, first)

    assert ask(bench, claim("bob", attempt=1)) == Superseded(closed=False, sealed=first.order)


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_a_stored_success_answers_every_attempt(bench: Bench, attempt: int) -> None:
    field = outbox_field(CALL, 2)
    bench.ledger.run([claim("ann", attempt=2), complete("ann", attempt=2), sent(field)])

    assert ask(bench, claim("bob", attempt=attempt)) == Stored(b'"ok"')
    assert ask(bench, OUTBOX) == []


def test_a_stored_failure_answers_its_own_attempt(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), complete("ann", success=False, result=b"no"), sent(FIELD)])

    assert ask(bench, claim("bob")) == Stored(b"no")
    assert ask(bench, OUTBOX) == []


def test_a_stored_failure_gives_way_to_a_higher_attempt_without_a_takeover(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), complete("ann", success=False, result=b"no")])

    assert ask(bench, claim("bob", attempt=2)) == Claimed()
    assert "result" not in bench.state().entries[7, KEY]


def test_a_lower_attempt_than_the_failed_one_is_superseded(bench: Bench) -> None:
    failed = complete("ann", attempt=2, success=False)
    bench.ledger.run([claim("ann", attempt=2), failed])

    assert ask(bench, claim("bob", attempt=1)) == Superseded(closed=False, sealed=failed.result, done=True)


@pytest.mark.parametrize(("token", "attempt"), [("ann", 1), ("bob", 1), ("bob", 2)])
def test_a_closed_call_cannot_be_claimed(bench: Bench, token: str, attempt: int) -> None:
    bench.ledger.run([claim("ann", lease_ms=0), CLOSE])

    assert ask(bench, claim(token, attempt=attempt)) == Superseded(closed=True)


def test_a_renewal_makes_the_lease_longer(bench: Bench) -> None:
    ask(bench, claim("ann", lease_ms=0))

    assert ask(bench, renew("ann")) == Renewed(closed=False)
    assert isinstance(ask(bench, claim("bob")), Busy)


def test_a_renewal_makes_a_lost_entry_again(bench: Bench) -> None:
    assert ask(bench, renew("ann", attempt=2)) == Renewed(closed=False)

    assert isinstance(ask(bench, claim("bob", attempt=2)), Busy)
    assert ask(bench, claim("ann", attempt=2)) == Claimed()
    assert bench.state().entries[7, KEY]["order"] == b"request r-1/2#2"


def test_a_renewal_under_another_token_is_fenced(bench: Bench) -> None:
    bench.ledger.run([claim("ann", lease_ms=0), claim("bob", lease_ms=0)])

    assert ask(bench, renew("ann")) == Fenced()
    assert ask(bench, LAPSED) == [(KEY, b"request r-1/2#1")]


def test_a_renewal_tells_that_the_call_was_closed_and_does_not_lease_it(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), CLOSE])

    assert ask(bench, renew("ann", lease_ms=0)) == Renewed(closed=True)
    assert ask(bench, renew("bob")) == Fenced()
    assert bench.state().leased == {}


def test_a_renewal_after_the_end_tells_to_stop_and_changes_nothing(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), complete("ann")])
    before = bench.state()

    assert ask(bench, renew("ann")) == Renewed(closed=True)
    assert ask(bench, renew("bob")) == Fenced()
    assert bench.state() == before


def test_a_release_makes_the_call_absent(bench: Bench) -> None:
    ask(bench, claim("ann"))

    assert ask(bench, Release(7, "default", KEY, "ann")) is None
    assert bench.state() == ({}, {}, {})
    assert ask(bench, claim("bob")) == Claimed()


def test_a_release_of_a_closed_call_makes_it_absent(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), CLOSE, Release(7, "default", KEY, "ann")])

    assert bench.state().entries == {}


def test_a_release_under_another_token_changes_nothing(bench: Bench) -> None:
    ask(bench, claim("ann"))
    before = bench.state()

    assert ask(bench, Release(7, "default", KEY, "bob")) is None
    assert bench.state() == before


def test_a_release_after_the_end_changes_nothing(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), complete("ann")])
    before = bench.state()

    assert ask(bench, Release(7, "default", KEY, "ann")) is None
    assert bench.state() == before


def test_a_call_that_was_handed_over_is_found_at_once_and_is_no_takeover_if_it_had_not_begun(bench: Bench) -> None:
    ask(bench, claim("ann"))

    assert ask(bench, HandOver(7, "default", KEY, "ann", begun=False)) is None
    assert ask(bench, Lapsed(7, "default", 10)) == [(KEY, b"request r-1/2#1")]
    assert ask(bench, renew("ann")) == Fenced()
    assert ask(bench, claim("bob")) == Claimed()
    assert ask(bench, HandOver(7, "default", KEY, "bob", begun=True)) is None
    assert ask(bench, claim("eve")) == Claimed("bob")
    assert ask(bench, HandOver(7, "default", KEY, "eve", begun=False)) is None
    assert ask(bench, claim("dan")) == Claimed("bob"), "somebody had begun it once, and nobody has said more"


def test_what_begun_and_was_handed_over_may_still_be_completed_by_whoever_did_it(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), HandOver(7, "default", KEY, "ann", begun=True)])

    assert ask(bench, complete("ann")) == Completed(FIELD)
    assert ask(bench, claim("bob")) == Stored(b'"ok"')


@pytest.mark.parametrize("before", [[CLOSE], [complete("ann")], [Release(7, "default", KEY, "ann")], []])
def test_handing_over_what_is_not_held_changes_nothing(bench: Bench, before: list[Operation]) -> None:
    bench.ledger.run([claim("ann"), *before])
    state = bench.state()

    assert ask(bench, HandOver(7, "default", KEY, "ann" if before else "bob", begun=False)) is None
    assert bench.state() == state


def test_completing_puts_result_into_ledger_and_outbox_and_drops_request_and_lease(bench: Bench) -> None:
    ask(bench, claim("ann"))

    assert ask(bench, complete("ann")) == Completed(FIELD)
    assert bench.state() == (
        {(7, KEY): {"state": "done", "call": CALL, "attempt": 1, "token": "ann", "success": True, "result": b'"ok"'}},
        {},
        {(7, "default"): {FIELD: b'"ok"'}},
    )


def test_completing_works_after_the_lease_as_long_as_nobody_took_over(bench: Bench) -> None:
    ask(bench, claim("ann", lease_ms=0))

    assert ask(bench, complete("ann")) == Completed(FIELD)
    assert ask(bench, LAPSED) == []


def test_completing_a_lost_entry_stores_the_result(bench: Bench) -> None:
    assert ask(bench, complete("ann", attempt=2)) == Completed(outbox_field(CALL, 2))
    assert ask(bench, claim("bob")) == Stored(b'"ok"')


def test_completing_twice_answers_the_same_and_keeps_the_first_result(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), complete("ann"), sent(FIELD)])

    assert ask(bench, complete("ann", success=False, result=b"other")) == Completed(FIELD)
    assert ask(bench, OUTBOX) == [(FIELD, b'"ok"')]
    assert bench.state().entries[7, KEY]["success"] is True


def test_completing_after_a_takeover_is_fenced_and_writes_nothing(bench: Bench) -> None:
    bench.ledger.run([claim("ann", lease_ms=0), claim("bob")])
    before = bench.state()

    assert ask(bench, complete("ann")) == Fenced()
    assert bench.state() == before


def test_completing_after_somebody_else_did_is_fenced(bench: Bench) -> None:
    bench.ledger.run([claim("ann", lease_ms=0), claim("bob"), complete("bob"), sent(FIELD)])

    assert ask(bench, complete("ann")) == Fenced()
    assert ask(bench, OUTBOX) == []


def test_a_result_that_comes_after_the_call_was_closed_is_still_real(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), CLOSE])

    assert ask(bench, complete("bob")) == Fenced()
    assert ask(bench, complete("ann")) == Completed(FIELD)
    assert ask(bench, OUTBOX) == [(FIELD, b'"ok"')]


def test_a_failure_of_a_closed_call_leaves_it_closed(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), CLOSE, complete("ann", success=False)])

    assert ask(bench, claim("bob", attempt=2)) == Superseded(closed=True)


def test_an_order_that_is_taken_back_lets_no_attempt_in_up_to_its_own_and_never_lapses(bench: Bench) -> None:
    back = Close(7, "default", ((KEY, CALL, 2),))
    bench.ledger.run([claim("ann", lease_ms=0), back])

    assert ask(bench, LAPSED) == []
    assert bench.ledger.run([claim("bob"), claim("bob", attempt=2)]) == [Superseded(closed=True, done=True)] * 2
    assert ask(bench, claim("eve", attempt=3)) == Claimed("ann")
    assert bench.ledger.run([back, renew("eve", attempt=3)]) == [None, Renewed(closed=False)], "it is a later one"


def test_whoever_runs_an_order_that_is_taken_back_keeps_the_lease_and_completes(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), Close(7, "default", ((KEY, CALL, 1),))])

    assert ask(bench, renew("ann")) == Renewed(closed=False)
    assert isinstance(ask(bench, claim("bob", attempt=2)), Busy)
    assert ask(bench, complete("ann")) == Completed(FIELD)
    assert isinstance(ask(bench, claim("bob", attempt=2)), Stored)


def test_who_lets_go_leaves_what_others_had_left(bench: Bench) -> None:
    bench.ledger.run([claim("ann", lease_ms=0), claim("bob"), Release(7, "default", KEY, "bob")])

    assert ask(bench, LAPSED) == []
    assert ask(bench, claim("eve")) == Claimed("ann")


def test_closing_an_unknown_call_or_none_changes_nothing(bench: Bench) -> None:
    assert bench.ledger.run([CLOSE, Close(7, "default", ())]) == [None, None]
    assert bench.state() == ({}, {}, {})


@pytest.mark.parametrize("success", [True, False])
def test_closing_a_done_call_leaves_a_marker_without_its_result(bench: Bench, success: bool) -> None:
    bench.ledger.run([claim("ann"), complete("ann", success=success), sent(FIELD), CLOSE])

    assert bench.state() == (
        {(7, KEY): {"state": "done", "call": CALL, "attempt": 1, "token": "ann", "closed": True}},
        {},
        {},
    )
    assert bench.ledger.run([claim("bob"), claim("bob", attempt=2)]) == [Superseded(closed=True)] * 2


def test_a_completion_that_is_repeated_after_the_tombstone_is_the_same_one(bench: Bench) -> None:
    bench.ledger.run([claim("ann"), complete("ann"), sent(FIELD), CLOSE])
    before = bench.state().entries

    assert bench.ledger.run([complete("bob"), complete("ann")]) == [Fenced(), Completed(FIELD)]
    assert bench.state().entries == before


def test_many_calls_are_closed_at_once(bench: Bench) -> None:
    calls = [f"r-{i}/1" for i in range(5)]
    bench.ledger.run([claim("ann", call=call) for call in calls])

    ask(bench, Close(7, "default", tuple((f"key of {call}", call, 0) for call in calls[1:])))  # type: ignore[misc]

    assert [bool(entry.get("closed")) for _, entry in sorted(bench.state().entries.items())] == [False] + [True] * 4
    assert bench.state().leased == {(7, "default"): {"key of r-0/1"}}


def test_homes_and_calls_with_like_names_do_not_meet(bench: Bench) -> None:
    calls = ["r/1", "r/11", "r.1/1", "r:leases/1", "call:r/1"]
    claims = [claim("ann", call=call, home=home) for call in calls for home in (1, 11)]

    assert bench.ledger.run(claims) == [Claimed()] * len(claims)


def test_any_bytes_come_back_as_they_were(bench: Bench) -> None:
    raw = bytes(range(256)) + b"\r\n$-1\r\n"

    bench.ledger.run([claim("ann", lease_ms=0)._replace(order=raw)])
    assert ask(bench, LAPSED) == [(KEY, raw)]

    assert ask(bench, complete("ann", result=raw)) == Completed(FIELD)
    assert ask(bench, OUTBOX) == [(FIELD, raw)]
    assert ask(bench, claim("bob")) == Stored(raw)


def test_started_entries_are_kept_for_a_month_others_for_a_week_and_markers_for_an_hour(bench: Bench) -> None:
    def hours() -> float:
        return round(bench.expires_in_ms(7, KEY) / HOUR_MS, 1)

    ask(bench, claim("ann"))
    assert hours() == 30 * 24
    ask(bench, complete("ann", success=False))
    assert hours() == 7 * 24
    ask(bench, CLOSE)
    assert hours() == 1
    bench.ledger.run([CLOSE, complete("ann")])
    assert hours() == 1
