"""When the next attempt is due: a pure function of policy, attempt and call."""

from __future__ import annotations

from hashlib import blake2b

from refold.core.events import RetryPolicy

REDISPATCH_MS = 10_000
"""The time past a call's timeout an answer may take, before the call goes out again: an executor that died is found."""


def backoff_ms(policy: RetryPolicy, attempt: int, salt: str) -> int:
    """The wait after attempt n: `base * 2^(n-1)`, at most `cap`, of which a half is jitter.

    The jitter comes from the salt and not from a random number, so that a decision made again is the same decision.
    What counts as less than a first attempt, by a log that somebody else has written, waits as long as the first.
    **Units**: milliseconds.
    """
    full = min(policy.cap_ms, policy.base_ms << min(max(attempt - 1, 0), 30))
    draw = int.from_bytes(blake2b(f"{salt}/{attempt}".encode(), digest_size=4).digest())
    return full // 2 + (full - full // 2) * draw // 2**32
