"""Callbacks: whose token counts for what, once, and what those hear who come too late."""

from __future__ import annotations

import pytest

from refold.core.errors import MalformedError, UsageError
from refold.core.events import (
    CallbackCompleted,
    CallbackFailed,
    Failure,
)
from refold.core.ids import callback_digest, callback_token, parse_callback_token, run_id
from refold.core.planning import waiting
from refold.core.planning.verdict import Ignore, Refuse
from tests.core.histories import (
    NOW,
    RUN,
    Log,
    answer,
    started,
)


def words(log: Log) -> list[str]:
    """The names of all events since the start."""
    return [type(event).__name__ for _, entry in log.entries[1:] for event in entry.events]


def refused(verdict: object) -> tuple[str, str]:
    assert isinstance(verdict, Refuse)
    return verdict.code, verdict.reason


class TestCallbacks:
    def test_whoever_has_the_token_resolves_it_once(self) -> None:
        log = started()
        token = log.callback()

        assert log.feed(answer(token, {"paid": True})) == [CallbackCompleted(1, '{"paid":true}', "", "psp")]
        assert isinstance(log.feed(answer(token, {"paid": True})), Ignore)
        assert refused(log.feed(answer(token, 2)))[0] == "conflict"
        assert "was resolved before by 'psp'" in refused(log.feed(answer(token, 2)))[1]

    def test_it_may_fail(self) -> None:
        log = started()
        token = log.callback()

        failed = log.feed(answer(token, failure="card declined", key="k-1"))

        assert failed == [CallbackFailed(1, Failure("callback_failed", "card declined"), "k-1", "psp")]
        assert isinstance(log.feed(answer(token, failure="card declined")), Ignore)
        assert refused(log.feed(answer(token, 1))) == (
            "conflict",
            f"the callback paid of run {RUN} was failed before by 'psp' at {NOW}, key 'k-1': its first answer counts",
        )

    def test_the_same_key_is_the_same_answer(self) -> None:
        log = started()
        token = log.callback()
        log.feed(answer(token, 1, key="k"))

        assert isinstance(log.feed(answer(token, 2, key="k")), Ignore)
        assert isinstance(log.feed(answer(token, failure="no", key="k")), Ignore)
        assert refused(log.feed(answer(token, 2, key="other")))[0] == "conflict"

    def test_what_does_not_fit_is_refused_and_the_callback_waits_on(self) -> None:
        log = started()
        schema = '{"properties":{"n":{"type":"integer"}},"required":["n"],"type":"object"}'
        token = log.callback(schema=schema)

        code, reason = refused(log.feed(answer(token, {"n": "many"})))
        right = log.feed(answer(token, {"n": 1}))

        assert code == "unfit"
        assert 'n: "many" is not of type "integer"' in reason
        assert right == [CallbackCompleted(1, '{"n":1}', "", "psp")]

    def test_a_schema_opens_no_address_and_no_pattern_holds_the_planner_up(self) -> None:
        log = started()
        remote = log.callback(schema='{"$ref":"file:///etc/passwd"}')
        slow = log.callback(schema='{"pattern":"^(a+)+$","type":"string"}')

        assert "cannot be used" in refused(log.feed(answer(remote)))[1]
        assert refused(log.feed(answer(slow, "a" * 100_000 + "!")))[0] == "unfit"

    def test_a_token_that_was_never_made_resolves_nothing(self) -> None:
        log = started()
        token = log.callback()
        forged = callback_token(run_id(RUN), "another seed", 1)

        assert parse_callback_token(forged) == RUN
        assert refused(log.feed(answer(forged)))[0] == "unknown_callback"
        assert isinstance(log.feed(answer(token)), list)

    def test_an_answer_after_its_time_is_refused_with_what_closed_it(self) -> None:
        log = started()
        token = log.callback(until_ms=NOW + 10)
        log.now += 10

        unwritten = refused(log.feed(answer(token)))
        log.feed(log.due())
        written = refused(log.feed(answer(token)))

        assert unwritten == (
            "closed",
            f"the callback paid of run {RUN} was valid until {NOW + 10}, and this came later",
        )
        assert written == ("closed", f"the callback paid of run {RUN} expired at {NOW + 10}, nobody having answered")


class TestTokens:
    def test_a_token_names_its_run_and_is_the_same_in_every_replay(self) -> None:
        tokens = {callback_token(run_id(name), "seed", number) for name in ("r", "r.1") for number in (1, 2, 1)}

        assert len(tokens) == 4
        assert {parse_callback_token(token) for token in tokens} == {"r", "r.1"}
        assert callback_token(run_id("r"), "seed", 1) != callback_token(run_id("r"), "other", 1)
        assert len({callback_digest(token) for token in tokens}) == 4

    @pytest.mark.parametrize(
        "text", ["", "cb_", "cb_!", "cb_" + "A" * 600, "r-1", "cb_" + "é", "cb_AAAAAAAAAAAAAAAAAAAAAAAA"]
    )
    def test_what_is_no_token_is_malformed(self, text: str) -> None:
        with pytest.raises(MalformedError):
            parse_callback_token(text)


@pytest.mark.parametrize("name", ["go", "payment.received", "a:b@c~d-1", "x" * 128])
def test_a_name_is_short_and_plain(name: str) -> None:
    assert waiting.check_name(name) == name


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "\x1b[31m", "x" * 129, "-", "a\n", 7, None])
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(UsageError):
        waiting.check_name(name)
