"""The operator: sees which calls are in doubt, looks at the world, and says what is true."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from confluent_kafka import Producer

from refold.core.ids import home
from tests.chaos import raw
from tests.chaos.actor import Actor, producer
from tests.chaos.raw import Chain, Event, History

PATIENCE_S = 1.0
"""How long the operator lets things settle before looking: whatever was on its way to the world has arrived by then."""

AGAIN_S = 8.0
TRUTH = "truth-"
"""How the signals of the operator are called, with a number."""


class Human(Actor):
    """A thread that resolves every doubt truthfully, as plain JSON. While `asleep` is set nothing is said.

    An operator who says "it did not happen" while the process that might still do it is merely stopped, is wrong a
    moment later: campaigns set `asleep` for as long as they hold an executor stopped.
    """

    def __init__(self, bootstrap: str, prefix: str, *, partitions: int, ask: Callable[[str], int | None]) -> None:
        super().__init__(f"human-{prefix}")
        self._bootstrap, self._prefix, self._partitions, self._ask = bootstrap, prefix, partitions, ask
        self.said = 0
        self.asleep = threading.Event()
        self._woke = 0.0
        self._chain = Chain()
        self._doubts: dict[tuple[str, int], tuple[int, str, float]] = {}

    @property
    def open(self) -> int:
        """How many doubts the operator sees."""
        return len(self._doubts)

    def live(self) -> list[str]:
        """The runs whose agents have asked for something, and that are not over."""
        return [run for run, history in list(self._chain.runs.items()) if len(history.events) > 2 and not history.end]

    def _work(self) -> None:
        sender, chain = producer(self._bootstrap), self._chain
        keys: dict[tuple[str, int], str] = {}
        for record in raw.tail(self._bootstrap, f"{self._prefix}run-log"):
            if record is not None:
                if accepted := chain.feed(record):
                    self._note(keys, *accepted)
                continue
            if self._stopped.is_set():
                sender.flush(10)
                return
            self._speak(sender)
            sender.poll(0)

    def _note(self, keys: dict[tuple[str, int], str], history: History, events: list[Event]) -> None:
        run = history.run
        for name, fields in events:
            place = run, fields.get("step", 0)
            if name in ("CallProposed", "ApprovalDecided") and fields["key"]:
                keys[place] = fields["key"]  # an edit makes another call of it
            elif name == "CallDoubted":
                self._doubts[place] = fields["attempt"], keys[place], time.monotonic() + PATIENCE_S
            elif name in ("DoubtResolved", "CallCompleted", "CallFailed"):
                self._doubts.pop(place, None)
            elif name in raw.TERMINAL:
                for open_place in [open_place for open_place in self._doubts if open_place[0] == run]:
                    del self._doubts[open_place]

    def _speak(self, sender: Producer) -> None:
        now = time.monotonic()
        if self.asleep.is_set():
            self._woke = now + PATIENCE_S
        if now < self._woke:
            return
        for (run, step), (attempt, key, due) in list(self._doubts.items()):
            if due > now:
                continue
            self._doubts[run, step] = attempt, key, now + AGAIN_S
            value = self._ask(key)
            verdict = {"verdict": "did_not_happen"} if value is None else {"verdict": "happened", "result": value}
            self.said += 1
            self._send(sender, run, {"step": step, "attempt": attempt, **verdict})

    def _send(self, sender: Producer, run: str, data: dict[str, object]) -> None:
        name = f"{TRUTH}{self.said}"
        said = {"run_id": run, "signal_id": name, "kind": "resolve", "data": data, "actor": "operator"}
        topic, number = f"{self._prefix}run-operated", home(run, self._partitions)
        sender.produce(topic, json.dumps(said), f"{run}/{name}", number)
