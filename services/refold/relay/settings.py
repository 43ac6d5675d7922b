"""Settings of a relay."""

from __future__ import annotations

from dataclasses import dataclass, field

from refold.core.topics import tool_completed
from refold.core.wire.seal import Seal


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Settings of a relay. **Units**: milliseconds.

    `sweep_ms` is the interval of searches in the outbox for results without an offer: results of a process that died
    between its COMPLETE and its publication. It bounds the delay of their runs. Acknowledged results stay in the outbox
    up to `drop_ms`, so that they leave it many at a time, or until there are `drop_most` in all partitions. A sweep
    takes up to `sweep_limit` results and ends with the one that brings it to `sweep_bytes`. Results that the log
    refuses altogether are tried again every `refused_ms`. Entries count under the `seal` of the pool.
    """

    pool: str = "default"
    member: str = "relay-1"
    sweep_ms: int = 1_000
    sweep_limit: int = 500
    sweep_bytes: int = 8 << 20
    drop_ms: int = 200
    drop_most: int = 100
    resend_ms: int = 50
    refused_ms: int = 60_000
    seal: Seal = field(default_factory=Seal)

    @property
    def topic(self) -> str:
        return tool_completed(self.pool)
