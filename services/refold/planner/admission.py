"""How many runs of a lane may be with executors at once, what inputs may take, and which topics wait meanwhile."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from refold.core.events import RunRequested, SignalReceived, WaitEnded
from refold.core.ids import RunId
from refold.core.messages import RunRequest, RunSignal
from refold.core.planning import waiting
from refold.core.planning.verdict import Input, Refuse, Ruling
from refold.core.run.mailbox import signal_bytes
from refold.core.run.snapshot import Asleep
from refold.core.run.state import RunState
from refold.core.topics import RUN_REQUESTED
from refold.core.wire.canonical import utf8_bytes
from refold.planner.acceptance import Acceptance
from refold.planner.inbox import Inbox, Pending
from refold.planner.settings import Limits
from refold.planner.takeover import TakeOver

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


class Admission:
    """The runs of one lane that are not over, by what they take. `agents` are those whose code is here.

    A run is active while executors have something of it; what waits for time or people is not.
    """

    def __init__(
        self, limits: Limits, agents: Container[str], inbox: Inbox, *, log: Acceptance, start: TakeOver
    ) -> None:
        self._limits, self._agents = limits, agents
        self._inbox, self._log, self._start = inbox, log, start
        self._active: set[RunId] = set()
        self._weights: dict[RunId, Weight] = {}
        self._bytes = {True: 0, False: 0}

    def count(self, state: RunState) -> None:
        """A run has changed, or was taken over: where its waits were not all asked, that goes on."""
        active = state.status == "running" and bool(state.open)
        (self._active.add if active else self._active.discard)(state.run_id)
        if state.mail.behind and not state.over:
            self._inbox.postpone(Pending(state.run_id, None))
        request = state.request
        if state.over or request is None:
            self._weigh(state.run_id, _NOTHING)
            return
        begun = state.status != "pending" and request.agent in self._agents
        size = input_bytes(request)
        weight = sum([each for each in (size, state.mail.bytes) if each > SMALL_BYTES])
        self._weigh(state.run_id, Weight(weight if begun else size + IDLE_BYTES, waits=not active))

    def count_asleep(self, run: RunId, kept: Asleep) -> None:
        """A run is taken over of which no more is known than what was kept."""
        active = kept.status == "running"
        if active:
            self._active.add(run)
        weight = kept.begins if kept.begins > SMALL_BYTES else 0
        self._weigh(run, Weight(kept.begins + IDLE_BYTES if kept.status == "pending" else weight, waits=not active))

    @property
    def busy(self) -> bool:
        """Whether executors have something of a run."""
        return bool(self._active)

    def room(self) -> int:
        """How many more runs may be with executors; none before all is heard that was said of them."""
        if not self._start.heard or self._bytes[False] > self._limits.input_bytes:
            return 0
        return self._limits.active - len(self._active) - self._log.flying

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
        topics = {topic for topic in self._inbox.topics if self._inbox.full(topic)}
        least = self._limits.active // 10 if RUN_REQUESTED in before else 0
        if self._inbox.held or self.room() <= least:
            topics.add(RUN_REQUESTED)
        return frozenset(topics)

    def _weigh(self, run: RunId, weight: Weight) -> None:
        before = self._weights.pop(run, _NOTHING)
        self._bytes[before.waits] -= before.bytes
        if weight.bytes:
            self._weights[run] = weight
            self._bytes[weight.waits] += weight.bytes


def input_bytes(request: RunRequest | RunRequested) -> int:
    """What the sender of a request has chosen the size of. **Units**: bytes."""
    return utf8_bytes(request.input) + sum(utf8_bytes(text) for each in request.labels.items() for text in each)
