"""Dead letters: unusable inputs, whole, with their position and the reason."""

import dataclasses
from typing import Any

from refold.core.messages import DeadLetter
from refold.core.topics import DEAD_LETTER
from refold.core.wire import codec
from refold.core.wire.headers import cloud_event
from refold.engine.ports.log import Outgoing, Record

SHORT_BYTES = 1_000
"""Bytes of key and value in a letter that the log refused at full size."""


def letter(
    record: Record, why: tuple[str, str], *, service: str, at_ms: int, into: str = DEAD_LETTER, limit: int | None = None
) -> Outgoing:
    """Dead letter of an input, for its partition; `limit` shortens key and value to this many bytes. `why`: code and
    reason. `into`: topic of the service's own letters."""
    position = f"{record.topic}/{record.partition}/{record.offset}"
    content = DeadLetter(
        **place(record),
        code=why[0],
        reason=why[1],
        key=(record.key or b"")[:limit],
        value=(record.value or b"")[:limit],
        service=service,
        at_ms=at_ms,
    )
    headers = cloud_event(into, position, id=position, source=service, at_ms=at_ms)
    return Outgoing(into, record.partition, record.key or position.encode(), codec.encode(content), headers, 0)


def place(record: Record) -> dict[str, Any]:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}


def shortened(record: Outgoing) -> Outgoing:
    """A letter with the beginning of its key, value and reason, in place of one that the log refused."""
    whole = codec.decode(DeadLetter, record.value or b"")
    key, value = whole.key[:SHORT_BYTES], whole.value[:SHORT_BYTES]
    short = dataclasses.replace(whole, key=key, value=value, reason=whole.reason[:SHORT_BYTES])
    position = f"{whole.topic}/{whole.partition}/{whole.offset}"
    return record._replace(key=position.encode(), value=codec.encode(short))
