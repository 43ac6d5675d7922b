"""Tools of a host, and live output of their calls."""

from collections.abc import Sequence
from typing import Protocol

from refold.core.messages import StreamPart
from refold.engine.ports.effects import StartTool, StopTool


class Tools(Protocol):
    """Runner of tools: see `engine.adapters.tools.toolbox`."""

    @property
    def alive(self) -> bool:
        """True if the started processes still run. A host whose tools are dead ends its process."""

    def start(self, orders: Sequence[StartTool]) -> None: ...

    def stop(self, order: StopTool) -> None: ...

    def close(self) -> None: ...


class Live(Protocol):
    """Sink of live parts, for display: see `engine.adapters.kafka.writer`. Lossy, never waited for."""

    def tell(self, part: StreamPart) -> None: ...

    def close(self) -> None: ...
