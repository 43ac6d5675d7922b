"""Limits of a lane: active runs, memory of their inputs, and topics that pause meanwhile."""

from collections import Counter
from collections.abc import Container
from typing import NamedTuple

from refold.core.events import CallProposed, RunRequested, SignalReceived, WaitEnded
from refold.core.ids import RunId
from refold.core.messages import RunRequest, RunSignal
from refold.core.planning import waiting
from refold.core.planning.verdict import Refuse, Ruling
from refold.core.run.mailbox import signal_bytes
from refold.core.run.snapshot import Asleep
from refold.core.run.state import RunState
from refold.core.topics import RUN_REQUESTED
from refold.core.wire.blobs import size_of
from refold.core.wire.canonical import utf8_bytes
from refold.engine.planner.intake.inbox import Inbox
from refold.engine.planner.log.acceptance import Acceptance
from refold.engine.planner.settings import Limits

SMALL_BYTES = 8_192
"""Size up to which an input counts as nothing: the run itself takes as much."""

OFFER_BYTES = 64
"""Bytes of the user allowance that one match against a signal takes: 5 to 30 microseconds."""

IDLE_BYTES = 2_048
"""Memory of a run that cannot begin: a sender may request any number."""


class Weight(NamedTuple):
    """Memory of an unfinished run's input, and whether the run is inactive."""

    bytes: int
    waits: bool


_NOTHING = Weight(0, waits=False)

Needed = tuple[str, str]
"""Place of an active run: `pool` or `tool`, and its name."""


class Admission:
    """Unfinished runs of one lane, by the resources that they use. `agents` have their code here. A run is active while
    executors have a call of it. Each pool and each tool has room for a limited number of active runs: if one is down or
    halted, only runs that need it wait. A new run is assumed to have the needs of its agent's active runs."""

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
        """Count a run that has changed or was taken over."""
        request, active = state.request, state.status == "running" and bool(state.open)
        self._place(state.run_id, request.agent if request else "", _pools_and_tools(state) if active else None)
        if state.over or request is None:
            self._weigh(state.run_id, _NOTHING)
            return
        if state.mail.behind:
            self._inbox.postpone(state.run_id)
        self._weigh(state.run_id, Weight(self._memory(state, request, active=active), waits=not active))

    def _memory(self, state: RunState, request: RunRequested, *, active: bool) -> int:
        # A large input is in memory while its run is active, and loaded again for the next time.
        weight = size_of(request.input) if active else input_bytes(request)
        if state.status == "pending" or request.agent not in self._agents:
            return input_bytes(request) + IDLE_BYTES
        return sum([part for part in (weight, state.mail.bytes) if part > SMALL_BYTES])

    def count_asleep(self, run: RunId, asleep: Asleep) -> None:
        """Count a sleeping run by its snapshot record alone."""
        active = asleep.status == "running"
        if active:
            self._place(run, "", frozenset())  # its places are known once it is folded
        weight = asleep.begins if asleep.begins > SMALL_BYTES else 0
        self._weigh(run, Weight(asleep.begins + IDLE_BYTES if asleep.status == "pending" else weight, waits=not active))

    @property
    def busy(self) -> bool:
        return bool(self._active)

    def room(self, agent: str = "") -> int:
        """Runs of this agent that may still become active; 0 until earlier inputs are answered."""
        if not self._inbox.is_read or self._bytes[False] > self._limits.input_bytes or self._waits(agent):
            return 0
        return self._limits.active - self._crowds()[1] - self._log.flying

    def admit(self) -> None:
        for agent in self._inbox.holders:
            if (room := self.room(agent)) > 0:
                self._inbox.admit(agent, room)

    def _waits(self, agent: str) -> bool:
        """True if runs of an agent need a crowded place."""
        return any(self._needs[place][agent] for place in self._crowds()[0])

    def _crowds(self) -> tuple[frozenset[Needed], int]:
        """Crowded places, and the number of active runs at none of them."""
        if self._crowd is None:
            most, number = self._limits.active, len(self._active)
            full = frozenset(place for place, runs in self._at.items() if len(runs) >= most) if number >= most else None
            active = len(set[RunId]().union(*(self._at[place] for place in full))) if full else 0
            self._crowd = full or frozenset(), number - active
        return self._crowd

    def _place(self, run: RunId, agent: str, places: frozenset[Needed] | None) -> None:
        # `places` is None if the run is not active.
        before = self._active.get(run)
        if before == places:
            return
        if places is None:
            del self._active[run]
        else:
            self._active[run] = places
        old, new = before or frozenset(), places or frozenset()
        for place in old - new:
            self._at[place].discard(run)
            self._needs[place][agent] -= 1
        for place in new - old:
            self._at.setdefault(place, set()).add(run)
            self._needs.setdefault(place, Counter())[agent] += 1
        self._crowd = None  # computed again on demand: a turn accepts hundreds of entries, and needs it a few times

    def refuses(self, request: RunRequest, now: int) -> str:
        """Reason to refuse a run for which room may never come, or ""."""
        size = input_bytes(request)
        later, deployed = request.not_before_ms > now, request.agent in self._agents
        if not later and deployed and size <= SMALL_BYTES:
            return ""
        if self._bytes[True] + size <= self._limits.input_bytes:
            return ""
        kind = "runs for later" if later else "large inputs" if deployed else "runs of agents that are not here"
        return f"too many {kind} wait in this partition; send it again later, or raise REFOLD_PLANNER__INPUT_BYTES"

    def limit_signals(self, ruling: Ruling, state: RunState | None, message: RunSignal) -> Ruling:
        """The ruling, or a refusal if there is no room for the signal that it keeps."""
        if state is not None:
            self._inbox.allowance -= OFFER_BYTES * waiting.offered_to(state, message, ruling)
        if not isinstance(ruling, list):
            return ruling
        events = [event for event in ruling if isinstance(event, SignalReceived)]
        size = sum(map(signal_bytes, events))
        if size <= SMALL_BYTES or self._bytes[True] + size <= self._limits.input_bytes:
            return ruling
        if any(isinstance(event, WaitEnded) for event in ruling):
            return ruling
        why = "too many large inputs and signals wait in this partition; send it again later"
        return Refuse("no_room", f"{why}, or raise REFOLD_PLANNER__INPUT_BYTES")

    def paused(self, before: frozenset[str]) -> frozenset[str]:
        """Topics to pause; `before` are paused now."""
        inbox = self._inbox
        topics = {topic for topic in inbox.topics if inbox.full(topic)} if inbox.crowded else set[str]()
        least = self._limits.active // 10 if RUN_REQUESTED in before else 0
        # A request for a crowded place lets later ones pass, while not too many wait.
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


def _pools_and_tools(state: RunState) -> frozenset[Needed]:
    places: set[Needed] = set()
    for step in state.open:
        if isinstance(call := state.steps[step - 1], CallProposed):
            places |= {("pool", call.pool), ("tool", call.tool)}
    return frozenset(places)


def input_bytes(request: RunRequest | RunRequested) -> int:
    """Bytes of a request whose number its sender has chosen."""
    return utf8_bytes(request.input) + sum(utf8_bytes(text) for label in request.labels.items() for text in label)
