"""What whoever lives in a simulated world may know of it and ask of it: time, chance, the log and the receiver."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator

from refold.core.approval.signature import SigningKey
from refold.core.topics import RUN_REQUESTED, RUN_SIGNALLED
from refold.engine.ports.log import Outgoing, Record
from refold.sdk.app import App
from refold.sdk.budget import Limit
from tests.simulator.app import simulated
from tests.simulator.reading.erased import Erasures
from tests.simulator.reading.witness import Witness
from tests.simulator.settings import SimSettings
from tests.simulator.world.archive import EACH_PASS, Archive
from tests.simulator.world.broker import SIM_TOPICS, Broker
from tests.simulator.world.faults import Chance
from tests.simulator.world.receiver import Receiver
from tests.simulator.world.store import Store

RESENT_MS = 900
"""How long it takes until somebody says again what a topic has lost: planners have noticed by then."""


class Surroundings:
    """A world from the inside.

    **Units**: `now_ms` is the true time; processes read clocks that may be wrong. `pending` is how much is to be waited
    for before the world is at rest, `lost_ms` for how long nobody was there, `regrown` where topics ended before they
    lost their ends. `decision_key` is what approval services sign with that start now, `app` what planners run that
    start now, `apps` what some of them run instead, by member.
    """

    decision_key: SigningKey
    app: App

    def __init__(self, chance: Chance, settings: SimSettings) -> None:
        self.chance, self.settings = chance, settings
        self.app = limited(simulated) if settings.limited else simulated
        self.apps: dict[str, App] = {}
        self.now_ms = settings.epoch_ms
        self.trace: list[tuple[object, ...]] = []
        self.counts: Counter[str] = Counter()
        self.pending = self.lost_ms = 0
        self.regrown: dict[tuple[str, int], int] = {}
        self.broker = Broker(settings.partitions, self._written, lambda: self.now_ms)
        self.receiver, self.store = Receiver(), Store()
        self.archive = Archive()
        self.witness = Witness(settings.retention_ms // 2, settings.chained_lease_ms)
        self.witness.history.limits.singly = settings.singly
        self.erasures = Erasures(self.witness, self.archive.files, self._lying)
        self._events: list[tuple[int, int, bool, Callable[[], object]]] = []
        self._numbers = 0

    @property
    def unsafe(self) -> bool:
        """Whether chance may still do harm."""
        return self.now_ms - self.settings.epoch_ms < self.chance.until_ms

    def at(self, delay_ms: int, what: Callable[[], object], *, waits: bool = True) -> None:
        """Does something later. `waits`: the world is not at rest before."""
        self._numbers += 1
        self.pending += waits
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._numbers, waits, what))

    def fire(self) -> None:
        """Does what is due now."""
        while self._events and self._events[0][0] <= self.now_ms:
            _, _, waits, what = heapq.heappop(self._events)
            self.pending -= waits
            what()

    def send(self, record: Outgoing) -> None:
        """Write what a client says, until it is answered: planners may have read a lost record in its place."""
        place = record.topic, record.partition
        at = self.broker.write(record).offset or 0
        if record.value and record.topic in (RUN_REQUESTED, RUN_SIGNALLED) and at < self.regrown.get(place, 0):
            written = self.broker.log(*place).records[-1]
            wait_ms = self.settings.outage_ms + RESENT_MS
            self.at(wait_ms, lambda: None if self.witness.answered(written) else self.send(record))

    def note(self, *line: object) -> None:
        """Adds a line to the trace."""
        self.trace.append((self.now_ms - self.settings.epoch_ms, *line))

    def _written(self, record: Record) -> None:
        self.trace.append(("->", record.topic, record.partition, record.offset, record.key))
        if self.settings.archivists:
            self.archive.written += record.key not in EACH_PASS
            self.erasures.follow(record)
        self.witness.writes(record)
        self.store.written(record)

    def _lying(self) -> Iterator[Record]:
        """All that lies in any topic, tombstones too."""
        for topic in SIM_TOPICS:
            for partition in range(self.settings.partitions):
                yield from self.broker.log(topic, partition).records


def limited(app: App) -> App:
    """The same for tenants who may spend so much a day."""
    again = App("simulated", limits=[Limit("day", label="tenant", usd="0.75")])
    again.tools.update(app.tools)
    for name in app.agents:
        for agent in app.versions(name).values():
            again.add_agent(agent)
    return again
