"""How many runs of a lane may be with executors at once, what inputs may take, and which topics wait meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import NamedTuple

from refold.core.events import CallProposed, RunRequested, SignalReceived, WaitEnded
from refold.core.ids import RunId
from refold.core.messages import RunRequest, RunSignal
from refold.core.planning import waiting
from refold.core.planning.verdict import Input, Refuse, Ruling
from refold.core.run.mailbox import signal_bytes
from refold.core.run.snapshot import Asleep
from refold.core.run.state import RunState
from refold.core.topics import RUN_REQUESTED
from refold.core.wire.blobs import size_of
from refold.core.wire.canonical import utf8_bytes
from refold.planner.intake.inbox import Inbox
from refold.planner.log.acceptance import Acceptance
from refold.planner.settings import Limits

SMALL_BYTES = 8_192
"""An input that is not larger counts as nothing: the run itself takes as much."""

ASKED_BYTES = 64
"""Of what users may have of a turn, a wait that is asked about a signal takes as much as these bytes: 5 to 30
microseconds."""

IDLE_BYTES = 2_048
"""What a run takes that cannot begin: of these a sender may order any number."""


class Weight(NamedTuple):
    """What the input of a run that is not over takes, and whether the run waits for time, people or code."""

    bytes: int
    waits: bool


_NOTHING = Weight(0, waits=False)

Needed = tuple[str, str]
"""Where runs are with executors: `pool` or `tool`, and its name."""


class Admission:
    """The runs of one lane that are not over, by what they take. `agents` are those whose code is here.

    A run is active while executors have something of it; what waits for time or people is not. There is room for so
    many active ones at each pool, and at each tool: where one is away, or halted, those wait that need it, and nobody
    else. What a run will need is not known before it runs, so it is what active runs of its agent need.
    """

    def __init__(self, limits: Limits, agents: Container[str], inbox: Inbox, *, log: Acceptance) -> None:
        self._limits, self._agents = limits, agents
        self._inbox, self._log = inbox, log
        self._active: dict[RunId, frozenset[Needed]] = {}
        self._at: dict[Needed, set[RunId]] = {}
        self._needs: dict[Needed, Counter[str]] = {}
        self._crowd: tuple[frozenset[Needed], int] | None = None
        self._weights: dict[RunId, Weight] = {}
        self._bytes = {True: 0, False: 0}

    def count(self, state: RunState) -> None:
        """A run has changed, or was taken over: where its waits were not all asked, that goes on."""
        active = state.status == "running" and bool(state.open)
        self._place(state.run_id, state.request.agent if state.request else "", _places(state) if active else None)
        if state.mail.behind and not state.over:
            self._inbox.postpone(state.run_id)
        request = state.request
        if state.over or request is None:
            self._weigh(state.run_id, _NOTHING)
            return
        begun = state.status != "pending" and request.agent in self._agents
        size = input_bytes(request)
        # What an input points to is in memory while its run is active, and read anew when it is so again.
        whole = size_of(request.input) if active else size
        weight = sum([each for each in (whole, state.mail.bytes) if each > SMALL_BYTES])
        self._weigh(state.run_id, Weight(weight if begun else size + IDLE_BYTES, waits=not active))

    def count_asleep(self, run: RunId, kept: Asleep) -> None:
        """A run is taken over of which no more is known than what was kept."""
        active = kept.status == "running"
        if active:
            self._place(run, "", frozenset())  # where, it says when it is looked into
        weight = kept.begins if kept.begins > SMALL_BYTES else 0
        self._weigh(run, Weight(kept.begins + IDLE_BYTES if kept.status == "pending" else weight, waits=not active))

    @property
    def busy(self) -> bool:
        return bool(self._active)

    def room(self, agent: str = "") -> int:
        """How many more runs (of this agent) may be with executors; none before all is heard that was said of them."""
        if not self._inbox.heard or self._bytes[False] > self._limits.input_bytes or self._waits(agent):
            return 0
        return self._limits.active - self._crowds()[1] - self._log.flying

    def admit(self) -> None:
        """Requests that wait for room are answered, as far as there is room for their agents."""
        for agent in self._inbox.holders:
            if (room := self.room(agent)) > 0:
                self._inbox.admit(agent, room)

    def _waits(self, agent: str) -> bool:
        """True if runs of an agent need what is crowded."""
        return any(self._needs[place][agent] for place in self._crowds()[0])

    def _crowds(self) -> tuple[frozenset[Needed], int]:
        """The places that are crowded, and how many runs are active and at none of them."""
        if self._crowd is None:
            most, number = self._limits.active, len(self._active)
            full = frozenset(place for place, runs in self._at.items() if len(runs) >= most) if number >= most else None
            there = len(set[RunId]().union(*(self._at[place] for place in full))) if full else 0
            self._crowd = full or frozenset(), number - there
        return self._crowd

    def _place(self, run: RunId, agent: str, places: frozenset[Needed] | None) -> None:
        """A run is active at these places, or (None) is not."""
        before = self._active.get(run)
        if before == places:
            return
        if before is None:
            self._active[run] = places or frozenset()
        elif places is None:
            del self._active[run]
        else:
            self._active[run] = places
        for place in (before or frozenset()) - (places or frozenset()):
            self._at[place].discard(run)
            self._needs[place][agent] -= 1
        for place in (places or frozenset()) - (before or frozenset()):
            self._at.setdefault(place, set()).add(run)
            self._needs.setdefault(place, Counter())[agent] += 1
        self._crowd = None  # made anew when somebody asks: a turn accepts hundreds of entries, and asks a few times

    def refuses(self, request: RunRequest, now: int) -> str:
        """Why there is no room for another run, though nobody could say when there will be; nothing if there is."""
        size = input_bytes(request)
        later, known = request.not_before_ms > now, request.agent in self._agents
        if not later and known and size <= SMALL_BYTES:
            return ""
        if self._bytes[True] + size <= self._limits.input_bytes:
            return ""
        kind = "runs for later" if later else "large inputs" if known else "runs of agents that are not here"
        return f"too many {kind} wait in this partition; send it again later, or raise REFOLD_PLANNER__INPUT_BYTES"

    def takes(self, ruling: Ruling, state: RunState | None, given: Input | None) -> Ruling:
        """A ruling about an input, or why there is no room for the signal that it keeps for a wait to come."""
        if not isinstance(given, RunSignal):
            return ruling
        if state is not None:
            self._inbox.allowance -= ASKED_BYTES * waiting.offered_to(state, given, ruling)
        if not isinstance(ruling, list):
            return ruling
        kept = [event for event in ruling if isinstance(event, SignalReceived)]
        size = sum(map(signal_bytes, kept))
        if size <= SMALL_BYTES or self._bytes[True] + size <= self._limits.input_bytes:
            return ruling
        if any(isinstance(event, WaitEnded) for event in ruling):
            return ruling
        why = "too many large inputs and signals wait in this partition; send it again later"
        return Refuse("no_room", f"{why}, or raise REFOLD_PLANNER__INPUT_BYTES")

    def paused(self, before: frozenset[str]) -> frozenset[str]:
        """The topics of which no more is to be taken. `before`: of which none is taken so far."""
        inbox = self._inbox
        topics = {topic for topic in inbox.topics if inbox.full(topic)} if inbox.crowded else set[str]()
        least = self._limits.active // 10 if RUN_REQUESTED in before else 0
        # A request that waits for a place which is crowded lets those behind it by, while not too many do.
        queued = any(not self._waits(agent) for agent in self._inbox.holders)
        if queued or self._inbox.held_bytes >= self._limits.topic_bytes or self.room() <= least:
            topics.add(RUN_REQUESTED)
        return frozenset(topics)

    def _weigh(self, run: RunId, weight: Weight) -> None:
        before = self._weights.pop(run, _NOTHING)
        self._bytes[before.waits] -= before.bytes
        if weight.bytes:
            self._weights[run] = weight
            self._bytes[weight.waits] += weight.bytes


def _places(state: RunState) -> frozenset[Needed]:
    calls = (state.steps[step - 1] for step in state.open)
    called = [call for call in calls if isinstance(call, CallProposed)]
    return frozenset([*(("pool", call.pool) for call in called), *(("tool", call.tool) for call in called)])


def input_bytes(request: RunRequest | RunRequested) -> int:
    """What the sender of a request has chosen the size of. **Units**: bytes."""
    return utf8_bytes(request.input) + sum(utf8_bytes(text) for each in request.labels.items() for text in each)
