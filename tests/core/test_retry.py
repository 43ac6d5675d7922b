"""The wait between attempts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refold.core.events import RetryPolicy
from refold.core.planning.matrix import backoff_ms
from tests.core.histories import examples

policies = st.builds(
    RetryPolicy, attempts=st.integers(1, 50), base_ms=st.integers(1, 10**6), cap_ms=st.integers(1, 10**8)
)
attempts = st.integers(-(10**6), 10**6)


@examples
@given(policies, attempts, st.text(st.characters(codec="utf-8")))
def test_a_wait_is_between_half_of_the_doubled_base_and_the_whole(policy: RetryPolicy, attempt: int, salt: str) -> None:
    full = min(policy.cap_ms, policy.base_ms * 2 ** min(max(attempt, 1) - 1, 60))

    assert full // 2 <= backoff_ms(policy, attempt, salt) <= min(full, policy.cap_ms)


@examples
@given(policies, attempts)
def test_the_same_decision_made_again_is_the_same(policy: RetryPolicy, attempt: int) -> None:
    assert backoff_ms(policy, attempt, "run-1/1") == backoff_ms(policy, attempt, "run-1/1")


def test_calls_that_fail_together_do_not_come_back_together() -> None:
    waits = {backoff_ms(RetryPolicy(base_ms=10_000), 1, f"run-{n}/1") for n in range(100)}

    assert len(waits) > 90
    assert max(waits) - min(waits) > 4_000
