"""Live output of a call, for display."""

from __future__ import annotations

from typing import Protocol

from refold.core.messages import StreamPart


class Live(Protocol):
    """Where live parts go: see `adapters.kafka.live`. What it loses is lost, and nobody waits for it."""

    def tell(self, part: StreamPart) -> None: ...

    def close(self) -> None: ...
