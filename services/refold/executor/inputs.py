"""What an executor is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from refold.core.messages import ToolRequest
from refold.runtime.lanes import Owed


@dataclass(slots=True, eq=False)
class Requested(Owed):
    """A call that is to be made, and the bytes that say so. Done with when its claim is answered, or none will come."""

    request: ToolRequest
    raw: bytes
