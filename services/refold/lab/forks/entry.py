"""Builder of entries as planners write them, for runs without a planner: forks and tests."""

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
"""Events that a run's code adds after the verdict; none, and the code is forgotten, if the run is held."""


class WrittenEntry(NamedTuple):
    entry: Entry
    record: tuple[bytes, bytes]
    state: RunState


def written(
    before: RunState, verdict: list[Event], now: int, react: React, *, by: tuple[str, bytes], halt: bool = False
) -> WrittenEntry | None:
    """Build the entry of an input; None if it changes nothing. `by`: actor, nonce. `halt` or a pause: no code runs."""
    seq, at_ms, after = before.head.seq + 1, max(now, before.at_ms), before.copy()
    advance(after, verdict, seq=seq, at_ms=at_ms)
    halted = (halt or bool(after.paused)) and not after.over
    reaction = react(after, halted)
    if not verdict and not reaction:
        return None
    fresh = extended(after, verdict, reaction, seq=seq, at_ms=at_ms)
    fresh = extended(after, fresh, suspension.status_change(before, after, fresh), seq=seq, at_ms=at_ms)
    if (unseen := after.unseen + wakes(verdict) if halted else 0) != after.unseen:
        after = replace(after, unseen=unseen)
    entry = Entry(before.run_id, seq, before.head.id, at_ms, None, *by, fresh, unseen > 0)
    name, value = codec.encode_entry(entry)
    after.link(Head(name, entry.last_seq))
    return WrittenEntry(entry, (log_key(entry.run_id, seq, name), value), after)
