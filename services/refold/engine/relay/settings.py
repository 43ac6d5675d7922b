"""Settings of a relay."""

from dataclasses import dataclass, field

from refold.core.topics import tool_completed
from refold.core.wire.seal import Seal


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Settings of a relay. Every `sweep_ms` the outbox is searched for up to `sweep_limit` results of a dead process,
    whose runs wait that long. Acknowledged results leave the outbox together, after `drop_ms` or once there are
    `drop_most`. Results that the log refuses altogether are tried again every `refused_ms`."""

    pool: str = "default"
    member: str = "relay-1"
    sweep_ms: int = 1_000
    sweep_limit: int = 500
    drop_ms: int = 200
    drop_most: int = 100
    resend_ms: int = 50
    refused_ms: int = 60_000
    seal: Seal = field(default_factory=Seal)

    @property
    def topic(self) -> str:
        return tool_completed(self.pool)
