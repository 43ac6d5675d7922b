"""How much an input may bring: counted alike by whoever sends it and by whoever takes it in.

**Units**: bytes of JSON text in UTF-8.
"""

from __future__ import annotations

from refold.core.errors import MalformedError
from refold.core.messages import RunRequest, RunSignal
from refold.core.wire import canonical

ENVELOPE_BYTES = 65_536
"""What a record may have around its payload: ids, names, the text of a failure, a trace."""


def check_size(name: str, size: int, limit: int) -> None:
    """**Raises** MalformedError for what is too large."""
    if size > limit:
        message = f"the {name} has {size} bytes, more than {limit}"
        raise MalformedError(message, hint="REFOLD_MAX_PAYLOAD_BYTES", limit=limit)


def check_input(message: RunRequest | RunSignal, most: int) -> None:
    """**Raises** MalformedError when the payload has more than `most`, or what stands around it too much."""
    if isinstance(message, RunSignal):
        check_size("data", canonical.utf8_bytes(message.data), most)
        around: tuple[str, ...] = (message.kind, message.actor)
    else:
        check_size("input", canonical.utf8_bytes(message.input), most)
        around = (message.agent, message.requester, *message.labels, *message.labels.values())
    check_size("envelope", sum(map(canonical.utf8_bytes, around)), ENVELOPE_BYTES)
