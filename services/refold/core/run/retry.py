"""Time of the next attempt: a pure function of policy, attempt and call."""

from hashlib import blake2b

from refold.core.events import RetryPolicy

REDISPATCH_MS = 10_000
"""Milliseconds past a call's timeout before it is sent again: enough to detect a dead executor."""


def backoff_ms(policy: RetryPolicy, attempt: int, salt: str) -> int:
    """Wait after attempt n in milliseconds: `base * 2^(n-1)`, at most `cap`, half of it jitter by the salt."""
    # A forged log may contain an attempt below 1: it waits as long as the first.
    full = min(policy.cap_ms, policy.base_ms << min(max(attempt - 1, 0), 30))
    draw = int.from_bytes(blake2b(f"{salt}/{attempt}".encode(), digest_size=4).digest())
    return full // 2 + (full - full // 2) * draw // 2**32
