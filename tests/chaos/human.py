"""The operator: sees which calls are in doubt, looks at the world, and says what is true."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Producer

from refold.core.approval import signature
from refold.core.approval.ballot import Vote
from refold.core.approval.signature import SigningKey
from refold.core.ids import home
from refold.core.messages import ApprovalVote
from refold.core.wire import codec
from refold.engine.runtime.settings import KafkaSettings
from tests.chaos import raw
from tests.chaos.actor import Actor, producer
from tests.chaos.people import VOTED, Said
from tests.chaos.raw import Chain, Event, Fields, History
from tests.chaos.rules import SETTLER

GIVE_UP_S = 1.0
"""How long the operator lets things settle before looking: whatever was on its way to the world has arrived by then."""

AGAIN_S = 8.0


@dataclass(frozen=True, slots=True)
class _Doubt:
    """What is asked of a call in doubt, by the log: the key that its effect has, and when the operator looks."""

    call: str
    asked: Fields
    key: str
    due: float

    @property
    def approval(self) -> str:
        """The id of the question."""
        return f"{self.call}~{self.asked['question'][:32]}"


class Human(Actor):
    """A thread that settles every doubt truthfully, by a vote. While `asleep` is set nothing is said.

    An operator who says "it did not happen" while the process that might still do it is merely stopped, is wrong a
    moment later: campaigns set `asleep` for as long as they hold an executor stopped. `votes` are all that were meant.
    `ask` tells what came of a call, by its key, `know` whether people are asked a question by now.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        key: SigningKey,
        *,
        ask: Callable[[str], int | None],
        know: Callable[[str], bool],
    ) -> None:
        super().__init__(f"human-{settings.prefix}")
        self._settings, self._key, self._ask, self._know = settings, key, ask, know
        self.votes: dict[str, Said] = {}
        self.asleep = threading.Event()
        self._woke = 0.0
        self._chain = Chain()
        self._doubts: dict[tuple[str, int], _Doubt] = {}

    @property
    def open(self) -> int:
        """How many doubts the operator sees."""
        return len(self._doubts)

    def live(self) -> list[str]:
        """The runs whose agents have asked for something, and that are not over."""
        return [run for run, history in list(self._chain.runs.items()) if len(history.events) > 2 and not history.end]

    def _work(self) -> None:
        sender, chain = producer(self._settings.bootstrap), self._chain
        calls: dict[tuple[str, int], tuple[str, str]] = {}
        for record in raw.tail(self._settings.bootstrap, f"{self._settings.prefix}run-log"):
            if record is not None:
                if accepted := chain.feed(record):
                    self._note(calls, *accepted)
                continue
            if self._stopped.is_set():
                sender.flush(10)
                return
            self._speak(sender)
            sender.poll(0)

    def _note(self, calls: dict[tuple[str, int], tuple[str, str]], history: History, events: list[Event]) -> None:
        run = history.run
        for seq, (name, fields) in enumerate(events, history.seq - len(events) + 1):
            place = run, fields.get("step", 0)
            if name == "CallProposed":
                calls[place] = f"{run}/{seq}", fields["key"]
            elif name == "ApprovalDecided":
                self._doubts.pop(place, None)
                if fields["key"]:
                    calls[place] = calls[place][0], fields["key"]  # an edit makes another call of it
            elif name == "ApprovalRequested" and fields["about"] == "doubt":
                self._doubts[place] = _Doubt(calls[place][0], fields, calls[place][1], time.monotonic() + GIVE_UP_S)
            elif name in raw.TERMINAL:
                for open_place in [open_place for open_place in self._doubts if open_place[0] == run]:
                    del self._doubts[open_place]

    def _speak(self, sender: Producer) -> None:
        now = time.monotonic()
        if self.asleep.is_set():
            self._woke = now + GIVE_UP_S
        if now < self._woke:
            return
        for place, doubt in list(self._doubts.items()):
            if doubt.due <= now and self._know(doubt.approval):
                self._doubts[place] = replace(doubt, due=now + AGAIN_S)
                self._vote(sender, place[0], doubt, self._ask(doubt.key))

    def _vote(self, sender: Producer, run: str, doubt: _Doubt, value: int | None) -> None:
        """It happened, with this value, or it did not happen: then the call may go out once more."""
        asked, name = doubt.asked, f"truth-{len(self.votes) + 1}"
        vote = Vote(
            approval=doubt.approval,
            vote=name,
            question=asked["question"],
            environment=asked["environment"],
            actor=SETTLER,
            action="approve" if value is None else "answer",
            issued=time.time_ns() // 1_000_000,
            result="" if value is None else json.dumps(value),
        )
        self.votes[name] = Said(vote.approval, SETTLER, vote.action)
        message = ApprovalVote(vote.approval, name, run, signature.sign(vote.payload(), self._key))
        topic, number = f"{self._settings.prefix}{VOTED}", home(run, self._settings.partitions)
        key: Any = f"{vote.approval}/{name}"
        sender.produce(topic, codec.encode(message), key, number)
