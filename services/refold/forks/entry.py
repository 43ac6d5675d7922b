"""Builder of one entry from an input, as planners write it, for runs without a planner: in forks and in tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from refold.core.events import Entry, Event
from refold.core.ids import log_key
from refold.core.run import suspension
from refold.core.run.chain import Head
from refold.core.run.fold import advance, extended, wakes
from refold.core.run.state import RunState
from refold.core.wire import codec

React = Callable[[RunState, bool], list[Event]]
"""Events that a run's code adds to the state after the verdict. A held run's code adds none and is forgotten."""


class WrittenEntry(NamedTuple):
    """An entry, its record (key and value), and the state after it."""

    entry: Entry
    record: tuple[bytes, bytes]
    state: RunState


def written(
    before: RunState, verdict: list[Event], now: int, react: React, *, by: tuple[str, bytes], hold: bool = False
) -> WrittenEntry | None:
    """The entry of an input with this verdict; None if nothing follows from it. `by` is its actor and its nonce. With
    `hold`, or while the run is paused, the code is not run."""
    seq, at_ms, after = before.head.seq + 1, max(now, before.at_ms), before.copy()
    advance(after, verdict, seq=seq, at_ms=at_ms)
    held = (hold or bool(after.paused)) and not after.over
    reaction = react(after, held)
    if not verdict and not reaction:
        return None
    fresh = extended(after, verdict, reaction, seq=seq, at_ms=at_ms)
    fresh = extended(after, fresh, suspension.status_change(before, after, fresh), seq=seq, at_ms=at_ms)
    if (unseen := after.unseen + wakes(verdict) if held else 0) != after.unseen:
        after = replace(after, unseen=unseen)
    entry = Entry(before.run_id, seq, before.head.id, at_ms, None, *by, fresh, unseen > 0)
    name, value = codec.encode_entry(entry)
    after.link(Head(name, entry.last_seq))
    return WrittenEntry(entry, (log_key(entry.run_id, seq, name), value), after)
