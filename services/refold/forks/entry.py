"""Entry that a planner writes for an input, as one entry: for runs that have no planner, in forks and in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from refold.core.events import Entry, Event
from refold.core.ids import log_key
from refold.core.run import chain, suspension
from refold.core.run.fold import advance, evolve, extended, wakes
from refold.core.run.state import RunState
from refold.core.wire import codec

React = Callable[[RunState, bool], list[Event]]
"""Events that a run's code adds, given the state with the verdict; none, and it is forgotten, where it is held."""


class WrittenEntry(NamedTuple):
    """An entry, its record (key and value), and the state after it."""

    entry: Entry
    record: tuple[bytes, bytes]
    state: RunState


def written(
    before: RunState, verdict: list[Event], now: int, react: React, *, by: tuple[str, bytes], hold: bool = False
) -> WrittenEntry | None:
    """The entry of an input with this verdict; None if nothing follows from it. `by` is its actor and its nonce.

    With `hold` the code is not run, nor while the run is paused.
    """
    seq, at_ms, after = before.head.seq + 1, max(now, before.at_ms), before.copy()
    advance(after, verdict, seq=seq, at_ms=at_ms)
    held, behind = (hold or bool(after.paused)) and not after.over, after.unseen
    reaction = react(after, held)
    if not verdict and not reaction:
        return None
    fresh = extended(after, verdict, reaction, seq=seq, at_ms=at_ms)
    fresh += suspension.status_change(before, after, fresh)
    unseen = held and behind + wakes(verdict) > 0
    entry = Entry(before.run_id, seq, before.head.id, at_ms, None, *by, fresh, unseen)
    name, value = codec.encode_entry(entry)
    record = log_key(entry.run_id, seq, name), value
    read = chain.read(*record)
    assert isinstance(read, chain.LogRecord), "what is written can be read"
    return WrittenEntry(read.entry, record, evolve(before, read.entry, read.id))
