"""Dead letters: an input that nobody can use, kept whole with its position and the reason."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from refold.core.messages import DeadLetter
from refold.core.topics import DEAD_LETTER
from refold.core.wire import codec
from refold.core.wire.headers import cloud_event


class Unusable(Protocol):
    """A record as it was read: what a letter needs of it."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...


class Letter(NamedTuple):
    """A dead letter, ready for the partition that its input came from."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


def letter(record: Unusable, *, code: str, reason: str, service: str, at_ms: int, limit: int | None = None) -> Letter:
    """The dead letter of an input; of a value longer than `limit` bytes it has the beginning."""
    content = DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        code=code,
        reason=reason,
        key=record.key or b"",
        value=(record.value or b"")[:limit],
        service=service,
        at_ms=at_ms,
    )
    position = f"{record.topic}/{record.partition}/{record.offset}"
    headers = cloud_event(DEAD_LETTER, position, id=position, source=service, at_ms=at_ms)
    return Letter(record.key or position.encode(), codec.encode(content), headers)
