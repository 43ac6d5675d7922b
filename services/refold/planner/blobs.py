"""Large values of a planner's runs: inputs wait for those that they point to, entries until theirs are kept.

Nothing else waits. A value is in memory from when it was read until its run's code has it; a run whose code has to be
run from the top needs all that it was ever handed, and stands still until they are read.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from refold.core import events
from refold.core.events import Failure
from refold.core.ids import RunId, child_id
from refold.core.messages import RunOperation, ToolResult
from refold.core.planning.verdict import ChildOver, Input, ParentOver, Start
from refold.core.run.chain import Head
from refold.core.run.handed import Pointed, Values, pointers
from refold.core.wire import blobs
from refold.planner.acceptance import Acceptance, SentEntry
from refold.planner.hosting import Agents
from refold.planner.inbox import Inbox, Pending
from refold.planner.migrating import MIGRATE
from refold.planner.outbox import Outbox
from refold.ports.effects import BlobLoaded, BlobSaved, LoadBlob, SaveBlob

TEXTS: dict[type, str] = {events.RunCompleted: "result", events.NoteRecorded: "data", events.ChildStarted: "input"}
"""The texts of what code asks for and says that go to the store when they are large. What a child is given lies with
the child, which may outlive its parent and needs it as long as it is there itself."""


LOADING_BYTES = 32 << 20
"""How much is read at a time, for all lanes of a planner."""

_RUN_AGAIN = frozenset({MIGRATE, "retry"})


class BlobOrders:
    """What the lanes of a planner want of the blob store: so many bytes are read at a time, or one value."""

    def __init__(self) -> None:
        self.orders: list[LoadBlob | SaveBlob] = []
        self._loads: deque[LoadBlob] = deque()
        self._loading: dict[int, int] = {}
        self._asked: dict[int, Callable[[str | Failure], None]] = {}
        self._number = 0

    def load(self, place: Pointed, then: Callable[[str | Failure], None], *, kept: bool) -> None:
        """Has a value read; `kept` see `LoadBlob`."""
        self._number += 1
        self._asked[self._number] = then
        self._loads.append(LoadBlob(self._number, *place, kept))
        self._load()

    def save(self, value: tuple[RunId, str], then: Callable[[str | Failure], None]) -> None:
        """Has a value kept."""
        self._number += 1
        self._asked[self._number] = then
        self.orders.append(SaveBlob(self._number, *value))

    def answered(self, answer: BlobLoaded | BlobSaved) -> None:
        """Tells who asked."""
        if self._loading.pop(answer.number, None) is not None:
            self._load()
        if then := self._asked.pop(answer.number, None):
            then(answer.value if isinstance(answer, BlobLoaded) else "")

    def _load(self) -> None:
        while self._loads and (under_way := sum(self._loading.values())) < LOADING_BYTES:
            size = blobs.size_of(self._loads[0].pointer)
            if under_way and under_way + size > LOADING_BYTES:
                return
            self._loading[self._loads[0].number] = size
            self.orders.append(self._loads.popleft())


class LargeValues:
    """Those of one lane: what stands before an input is answered, and before its entry is sent.

    **Units**: `most` in bytes of one value; 0 where there is no blob store.
    """

    def __init__(
        self, asks: BlobOrders, inbox: Inbox, log: Acceptance, outbox: Outbox, *, agents: Agents, most: int
    ) -> None:
        self._asks, self._inbox, self._log, self._outbox = asks, inbox, log, outbox
        self._agents, self._most = agents, most
        self._driven: set[RunId] = set()
        self._away: list[tuple[RunId, str]] = []
        self._keeping: dict[RunId, list[Pending]] = {}

    # On the way in

    def awaits(self, item: Pending, *, loads: bool) -> bool:
        """Whether an input waits, for what it points to or behind an entry of its run; then it comes back by itself.

        Unless it `loads`, what it points to is of no use to its answer.
        """
        given = item.input
        if self._keeping:
            run = given.parent if isinstance(given, ParentOver) else item.run_id
            if (behind := self._keeping.get(run)) is not None:
                behind.append(item)
                return True
        if isinstance(given, ToolResult) and not given.result.startswith(blobs.MARK):  # nearly all of them
            return False
        if not loads:
            return False
        wanted = [place for place in self._named(given) if place not in item.values]
        self._load(item, wanted)
        return bool(wanted)

    def drive(self, run: RunId, places: Iterable[Pointed], values: Values) -> None:
        """Has the code of a run driven once these values are there, beside those that were read for it."""
        if run not in self._driven:
            self._driven.add(run)
            self._load(Pending(run, None, values=values), places)

    def _named(self, given: Input | None) -> Iterator[Pointed]:
        if isinstance(given, ToolResult):
            yield given.run_id, given.result
        elif isinstance(given, Start):
            if blobs.is_pointer(given.request.input):
                yield given.request.run_id, given.request.input
        elif isinstance(given, ChildOver):
            if blobs.is_pointer(given.result):
                yield child_id(given.run_id, given.step), given.result
        # What people want to be tried is answered when it was: then its code is run from the top.
        elif isinstance(given, RunOperation) and given.kind in _RUN_AGAIN and (state := self._log.known(given.run_id)):
            yield from pointers(state)

    def _load(self, item: Pending, places: Iterable[Pointed]) -> None:
        left = set(places)

        def loaded(place: Pointed, value: str | Failure) -> None:
            item.values = {**item.values, place: value}
            if isinstance(value, Failure) and isinstance(item.input, ToolResult):
                # It has happened, and what came of it is lost. Of what is in the log already that cannot be said.
                item.input = dataclasses.replace(item.input, status="broken", result="", failure=value, retryable=False)
            left.discard(place)
            if not left:
                self._driven.discard(item.run_id)
                self._inbox.push([item])

        # Users may say anything of what they have put there: nothing waits for that where there is no store.
        kept = not isinstance(item.input, Start) or item.input.origin is not None
        for place in list(left):
            self._asks.load(place, partial(loaded, place), kept=kept)

    # On the way out

    def put_away(self, run: RunId, added: list[events.Event]) -> list[events.Event]:
        """What code has added, with what stands for its large values; these are kept before the entry is sent."""
        self._away = []
        if self._most:
            for place, event in enumerate(added):
                if (name := TEXTS.get(type(event))) and blobs.is_large(text := getattr(event, name)):
                    owner = child_id(run, event.step) if isinstance(event, events.ChildStarted) else run
                    added[place] = dataclasses.replace(event, **{name: self._point(owner, text)})  # type: ignore[arg-type]
        return added

    def _point(self, run: RunId, text: str) -> str:
        try:
            data = text.encode()
        except UnicodeEncodeError:  # made by hand and not by its context: its entry cannot be written
            return text
        if len(data) > self._most:
            return text  # and its entry is too large
        self._away.append((run, text))
        return blobs.pointer_of(data)

    def send(self, sent: SentEntry) -> None:
        """Sends an entry when its large values are kept. What comes for its run until then waits."""
        away, self._away = self._away, []
        if not away:
            self._send(sent)
            return
        run, left = sent.entry.run_id, len(away)
        self._keeping[run] = []

        def saved(_: str | Failure) -> None:
            nonlocal left
            left -= 1
            if not left:
                behind, known = self._keeping.pop(run), self._log.known(run)
                if (known.head if known else Head()).id == sent.entry.prev:
                    self._send(sent)
                else:  # another planner has written on meanwhile
                    self._agents.forget(run)
                    behind.insert(0, sent.item)
                self._inbox.push(behind)

        for owner, text in away:
            self._asks.save((owner, text), saved)

    def _send(self, sent: SentEntry) -> None:
        self._log.send(sent)
        self._outbox.append(sent, sent.value)
