"""Live output of a call, for display."""

from __future__ import annotations

from typing import Protocol

from refold.core.messages import StreamPart


class Live(Protocol):
    """Sink of live parts: see `adapters.kafka.live`. Lossy, never waited for."""

    def tell(self, part: StreamPart) -> None: ...

    def close(self) -> None: ...
