"""The records that a lane publishes: commands, strays on their way home, dead letters."""

from __future__ import annotations

from refold.core.planning.commands import Command
from refold.core.run.state import RunState
from refold.core.topics import DEAD_LETTER
from refold.core.wire import codec, letters
from refold.core.wire.headers import cloud_event
from refold.ports.log import Outgoing, Record


def command(state: RunState, order: Command, offset: int, *, partition: int, actor: str, at_ms: int) -> Outgoing:
    """A command that the entry at a run-log offset orders, in the trace of the run's request.

    A tombstone says nothing but its key, so it has no headers either.
    """
    if order.message is None:
        return Outgoing(order.topic, partition, order.key.encode(), None, (), 0)
    trace = state.request.traceparent if state.request else ""
    name = f"{partition}/{offset}/{order.key}"
    headers = cloud_event(order.topic, order.key, id=name, source=actor, at_ms=at_ms, trace=trace)
    return Outgoing(order.topic, partition, order.key.encode(), codec.encode(order.message), headers, 0)


def forward(record: Record, run: str, target: int) -> Outgoing:
    """An input that lay in a partition that is not its run's home, unchanged."""
    return Outgoing(record.topic, target, record.key or run.encode(), record.value, record.read_headers() or [], 0)


def letter(record: Record, reason: tuple[str, str], *, actor: str, at_ms: int, limit: int) -> Outgoing:
    """An input that nobody can use, whole (but for what is over `limit` bytes), with its position and the reason."""
    code, why = reason
    key, value, headers = letters.letter(record, code=code, reason=why, service=actor, at_ms=at_ms, limit=limit)
    return Outgoing(DEAD_LETTER, record.partition, key, value, headers, 0)
