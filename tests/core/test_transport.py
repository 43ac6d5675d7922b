"""What `decide` makes of what the log does not take, and of what comes out of it unreadable."""

from __future__ import annotations

import pytest

from refold.core.events import (
    ApprovalDecided,
    CallDoubted,
    CallFailed,
    Failure,
)
from refold.core.planning.verdict import Ignore, Undeliverable, UnreadableResult
from tests.core.histories import BOOM, RUN, Log, asking, calling


def never_sent(log: Log, *, sent_before: bool = False) -> Undeliverable:
    """The request that is under way is refused."""
    opened = log.live.open[1]
    return Undeliverable(RUN, opened.seq, attempt=opened.attempt, sent_before=sent_before)


class TestTransport:
    """What the log does not take, and what comes out of it unreadable."""

    def test_an_attempt_whose_request_is_too_large_fails(self) -> None:
        log = calling("once")

        (event,) = log.feed(never_sent(log))  # type: ignore[misc]

        assert isinstance(event, CallFailed)
        assert (event.attempt, event.failure.code) == (1, "too_large")

    def test_it_falls_into_doubt_where_an_earlier_attempt_may_have_acted(self) -> None:
        log = calling("keyed")
        log.feed(log.result(status="unknown"))
        log.now = log.due().due_ms
        log.feed(log.due())

        (event,) = log.feed(never_sent(log))  # type: ignore[misc]

        assert isinstance(event, CallDoubted)

    @pytest.mark.parametrize(
        ("effect", "ending"),
        [("pure", CallFailed), ("keyed", CallDoubted), ("probed", CallDoubted), ("once", CallDoubted)],
    )
    def test_so_it_does_where_the_same_attempt_went_out_before(self, effect: str, ending: type) -> None:
        log = calling(effect)

        (event,) = log.feed(never_sent(log, sent_before=True))  # type: ignore[misc]

        assert type(event) is ending
        assert event.failure.code == "too_large"  # type: ignore[attr-defined]

    def test_it_says_nothing_of_a_later_attempt(self) -> None:
        log = calling("keyed")
        late = never_sent(log, sent_before=True)
        log.feed(log.result(status="unknown"))
        log.now = log.due().due_ms
        log.feed(log.due())

        assert isinstance(log.feed(late), Ignore)

    def test_a_question_that_is_too_large_ends_with_its_call(self) -> None:
        log = asking("once")
        seq, name = log.live.open[1].seq, log.live.waits_for(1)

        events = log.feed(Undeliverable(RUN, seq, approval=name))

        assert isinstance(events, list)
        assert [type(event) for event in events] == [ApprovalDecided, CallFailed]
        assert events[0].message == "the question could not be asked"  # it has not expired: its time is not over

    @pytest.mark.parametrize(
        ("effect", "ending"),
        [("pure", CallFailed), ("keyed", CallDoubted), ("probed", CallDoubted), ("once", CallDoubted)],
    )
    def test_a_result_that_nobody_can_read_settles_its_call(self, effect: str, ending: type) -> None:
        log = calling(effect)

        (event,) = log.feed(UnreadableResult(RUN, log.live.open[1].seq, Failure("unreadable", "it is none")))  # type: ignore[misc]

        assert type(event) is ending
        assert event.failure.code == "unreadable"  # type: ignore[attr-defined]

    def test_neither_says_anything_of_a_call_that_is_settled(self) -> None:
        log = calling()
        seq, refused = log.live.open[1].seq, never_sent(log)
        log.feed(log.result())

        assert isinstance(log.feed(refused), Ignore)
        assert isinstance(log.feed(Undeliverable(RUN, seq, approval=f"{RUN}/{seq}~{'0' * 32}")), Ignore)
        assert isinstance(log.feed(UnreadableResult(RUN, seq, BOOM)), Ignore)
