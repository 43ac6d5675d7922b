"""Tools of a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from refold.ports.effects import StartTool, StopTool


class Tools(Protocol):
    """Runner of tools: see `adapters.tools.toolbox`."""

    @property
    def alive(self) -> bool:
        """True if the started processes still run. A host whose tools are dead ends its process."""
        ...

    def start(self, orders: Sequence[StartTool]) -> None: ...

    def stop(self, order: StopTool) -> None: ...

    def close(self) -> None: ...
