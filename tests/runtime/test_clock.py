"""The time by the log: nobody's wall clock, and no jump of one, has a part in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refold.engine.runtime.clock import LogClock

DAY = 86_400_000


def test_the_time_is_the_last_append_time_and_what_has_passed_since() -> None:
    clock = LogClock()
    clock.tick(50)

    clock.delivered(1_000_000)
    clock.tick(3_050)

    assert clock.now_ms == 1_003_000
    assert clock.mono_of(1_010_000) == 10_050


def test_what_was_read_late_does_not_set_the_clock_back() -> None:
    clock = LogClock()
    clock.delivered(1_000_000)

    clock.read(1_000_000 - DAY)

    assert clock.now_ms == 1_000_000


def test_a_broker_that_was_a_day_ahead_is_believed_until_it_is_corrected() -> None:
    clock = LogClock()
    clock.read(1_000_000 + DAY)
    ahead = clock.now_ms

    clock.delivered(1_000_000)

    assert (ahead, clock.now_ms) == (1_000_000 + DAY, 1_000_000)


def test_a_clock_is_fresh_only_after_an_append_of_its_own() -> None:
    clock = LogClock()
    before = clock.now_ms
    clock.read(1_000_000)
    read = clock.fresh

    clock.delivered(1_000_001)

    assert (before, read, clock.fresh) == (0, False, True)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.booleans()), min_size=1))
def test_the_clock_is_never_ahead_of_a_broker_whose_clock_is_right(steps: list[tuple[int, int, bool]]) -> None:
    clock, true_ms, mono = LogClock(), 10**12, 7

    for passed, late, own in steps:
        true_ms, mono = true_ms + passed, mono + passed
        clock.tick(mono)
        if own:
            clock.delivered(true_ms)
        else:
            clock.read(true_ms - late)

        assert clock.now_ms <= true_ms
        assert clock.now_ms == true_ms or not own
