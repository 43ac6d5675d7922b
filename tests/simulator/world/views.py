"""Simulated projectors: the product's own, in threads of their own, which read while everything else happens.

Nothing that writes a log reads a view, so they stand beside the world. They have a source of chance of their own and
change nothing in it: a schedule has the same trace with them and without them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, cast
from unittest.mock import patch

from refold.console.projections import service
from refold.console.projections.projector import HEADS
from refold.console.projections.service import KeptProjection
from refold.console.projections.shipped.projection import Shipped
from refold.core.errors import ConflictError, UnreachableError
from refold.core.events import CallCompleted, CallFailed, RunCompleted, RunRequested
from refold.core.ids import RunId
from refold.core.run.account import tokens_of
from refold.core.tables import ViewTable
from refold.engine.adapters.kafka.source import TOPICS
from refold.engine.adapters.memory.log import PartitionCursor
from refold.engine.ports.log import LogReader, Place, Record, Taken
from refold.engine.ports.tables import ViewChanges, ViewStore
from refold.sdk.projection import Projection, Recorded, View, key, sums, table
from tests.projections.memory_views import MemoryViewDatabase, MemoryViewStore
from tests.simulator.world.archivist import Pass
from tests.simulator.world.process import Act
from tests.simulator.world.surroundings import Surroundings

GOES_ON, ACTS = 0.6, 0.5
"""The chance that a projector goes on over an effect without a stop, and that one that stands has a turn."""
DIES, FREEZES, CUT, REBUILT, IDLE_MS = 0.015, 0.006, 0.02, 0.004, 150
NOTICES = 20
"""Turns in which a projection that stands still notices that another generation was made."""
MOST_TURNS = 3_000
"""Turns of all projectors until they have caught up at the latest."""

NANO_USD = 7
"""The price of a token of what no budget bills."""

Share = Counter[tuple[str, str]]
"""What a run adds to sums, by tool and column."""


class Outcomes(Projection):
    """Outcomes of calls and runs, and sums of them by tool. `seen` is told what is applied."""

    events = (RunRequested, CallCompleted, CallFailed, RunCompleted)
    rows = table("outcome_rows", key(run_id=str, seq=int), tool=str)
    by_tool = sums("outcomes_by_tool", key(tool=str), n=int, total=int)

    def __init__(self, seen: Callable[[str, int, str], None] = lambda run, seq, tool: None) -> None:
        self._seen = seen

    def apply(self, view: View, recorded: Recorded) -> None:
        tool = recorded.called.tool if recorded.called else ""
        self._seen(recorded.run_id, recorded.seq, tool)
        view.put(self.rows, seq=recorded.seq, tool=tool)
        view.add(self.by_tool, tool=tool, n=1, total=recorded.seq)


class LaterOutcomes(Outcomes):
    """The same in a later version."""

    name = "outcomes"
    version = 2
    rows, by_tool = Outcomes.rows, Outcomes.by_tool


def priced() -> Shipped:
    """Return the projection of the product, with prices."""
    return Shipped(lambda usage, at_ms: NANO_USD * (tokens_of(usage) or 0), "simulated")


class Sums:
    """A second account of the sums of a generation. `live` has what each run has added, `erased` what erased ones have.

    `lost`: the log is another one, or was cut below the position of the generation.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.live: dict[str, dict[int, str]] = {}
        self.erased: Share = Counter()
        self.lost = False

    def take(self, applied: Mapping[str, dict[int, str]], store: MemoryViewStore, changed: Collection[str]) -> None:
        """A batch is committed in which this was applied."""
        for run, events in applied.items():
            known = {} if 1 in events else self.live.get(run, {})
            self.live[run] = known | events
        for run in changed & self.live.keys():
            head = store.rows(HEADS, [(run,)]).get((run,))
            if head is None or head[HEADS.places["status"]] == "erased":
                self.erased += _share(self.live.pop(run))

    @property
    def whole(self) -> Share:
        """What all runs have added that were ever seen."""
        whole = Counter(self.erased)
        for events in self.live.values():
            whole += _share(events)
        return whole


def _share(events: Mapping[int, str]) -> Share:
    found: Share = Counter()
    for seq, tool in events.items():
        found += Counter({(tool, "n"): 1, (tool, "total"): seq})
    return found


class MemorySource:
    """See `LogSource`: the logs of the simulated broker. `pause` is called before each effect."""

    def __init__(self, views: Views, pause: Callable[[str], None] = lambda kind: None) -> None:
        self.views, self.pause = views, pause
        self._broker = views.world.broker

    @property
    def reader(self) -> LogReader:
        return self

    def identity(self) -> str:
        return f"log-{self._broker.renumbered}"

    def bounds(self) -> dict[Place, tuple[int, int]]:
        logs = {place: self._broker.log(*place) for place in self.views.places}
        return {place: (log.start, log.end) for place, log in logs.items()}

    def feed(self, positions: Mapping[Place, int]) -> MemoryFeed:
        return MemoryFeed(self, positions)

    def partitions(self, topic: str) -> int:
        return self._broker.partitions

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        self.pause("scan")
        numbers = range(self.partitions(topic)) if partition is None else (partition,)
        return iter([record for number in numbers for record in self._broker.log(topic, number).records])

    def tail(self, topic: str, partition: int | None = None) -> Iterator[Record | None]:
        raise NotImplementedError

    def tail_kinds(self, kinds: Collection[str], partition: int) -> Iterator[Record | None]:
        raise NotImplementedError


class MemoryFeed:
    """See `LogFeed`. It gives less than there is now and then, and notices a cut by the epoch of what it has read."""

    def __init__(self, source: MemorySource, positions: Mapping[Place, int]) -> None:
        self._source = source
        broker = source.views.world.broker
        self._cursors = [PartitionCursor(*place, broker.log(*place), at) for place, at in positions.items()]
        self.reached: dict[Place, int] = {}

    def take(self, timeout_s: float) -> list[Record]:
        self._source.pause("take")
        views, taken = self._source.views, Taken()
        for cursor in self._cursors:
            if cursor.lost:
                raise UnreachableError(f"{cursor.topic}/{cursor.partition} does not contain {cursor.position} any more")
            end, at = cursor.log.end, cursor.position
            upto = end if views.calm or views.rng.random() < 0.6 else views.rng.randint(at, end)
            if upto > at:
                cursor.read(upto, taken)
            if cursor.position >= end:
                self.reached[cursor.topic, cursor.partition] = end
        if not taken.records:
            views.wait(timeout_s)
        return taken.records

    def close(self) -> None:
        self._cursors = []


class SimStore:
    """A generation as a projector has it: each commit is an effect. `sums` are a second account of it."""

    def __init__(self, projector: SimProjector, projection: str, number: int, store: MemoryViewStore) -> None:
        self._projector, self._projection, self._number, self._store = projector, projection, number, store

    def __getattr__(self, name: str) -> Any:
        if self._number not in self._projector.views.database.generations(self._projection):
            raise ConflictError("the generation was dropped")
        return getattr(self._store, name)

    def commit(self, changes: ViewChanges) -> None:
        applied = self._projector.applied()
        self._projector.pause("commit")
        views = self._projector.views
        views.cut("commit")
        there, generation = self._store, (self._projection, self._number)
        if views.owner is not self._projector:
            erased = Counter(views.sums[self._number].erased) if self._projection == Outcomes.name else Counter()
            views.late.setdefault(generation, (there.positions(), erased))
        try:
            if self._number not in views.database.generations(self._projection):
                raise ConflictError("the generation was dropped")
            there.commit(changes)
        except ConflictError:
            views.counts["views.refused"] += 1
            raise
        views.counts["views.read whole"] += bool(changes.runs)
        if views.owner is self._projector:
            views.late.pop(generation, None)
        if self._projection == Outcomes.name:
            changed = {str(row[0]) for row in changes.rows.get(HEADS, {})} | changes.runs
            views.sums[self._number].take(applied, there, changed)
            # It may have been read before the log was cut, and is committed after `Views` has looked.
            for place, seen in self._projector.cuts.items():
                cuts = views.world.broker.log(*place).cuts[seen:]
                views.sums[self._number].lost |= bool(cuts) and there.positions().get(place, 0) > min(cuts)
        self._projector.pause("committed")
        views.cut("committed")


class SimDatabase:
    """See `ViewDatabase`: what a projector does in it. Without the lock it makes, switches and drops no generations.

    In production the connections that do this are gone when the one with the lock is.
    """

    def __init__(self, projector: SimProjector) -> None:
        self._projector, self._views = projector, projector.views

    def __getattr__(self, name: str) -> Any:
        return getattr(self._views.database, name)

    def lock(self, projection: str) -> bool:
        return self._views.owner is self._projector

    def store(self, projection: str, generation: int) -> ViewStore:
        found = self._views.database.store(projection, generation)
        return cast(ViewStore, SimStore(self._projector, projection, generation, found))

    def create(self, projection: str, generation: int, tables: Collection[ViewTable], notes: Mapping[str, str]) -> None:
        self._act("create")
        self._views.create(projection, generation, tables, notes)

    def switch(self, projection: str, generation: int, tables: Collection[ViewTable]) -> None:
        self._act("switch")
        self._views.switches(projection, generation, self._projector)
        self._views.database.switch(projection, generation, tables)
        self._projector.pause("switched")

    def drop(self, projection: str, generation: int) -> None:
        self._act("drop")
        self._views.database.drop(projection, generation)
        self._projector.pause("dropped")

    def _act(self, kind: str) -> None:
        self._projector.pause(kind)
        if self._views.owner is not self._projector:
            raise UnreachableError("the lock is another process's")


class SimProjector:
    """A process that keeps the views up to date, in a thread. `until_ms` is when one goes on that stands still.

    `ends` is where the logs ended when a projection of it had its last turn, `cuts` how often each was cut by when that
    took its first records. `unchecked` are the runs whose rows it has written to `run-view`, and has not read
    since.
    """

    def __init__(self, views: Views, outcomes: type[Outcomes]) -> None:
        self.views, self.until_ms, self.idle_ms = views, 0, 0
        self.ends: dict[Place, int] = {}
        self.cuts: dict[Place, int] = {}
        self.idle_ends: dict[Place, int] = {}
        self.unchecked: set[RunId] = set()
        self._applied: dict[str, dict[int, str]] = {}
        database, source = SimDatabase(self), MemorySource(views, self.pause)
        self.slots = [
            KeptProjection(priced(), cast(Any, database), source, clock=views.clock, send=self._send),
            KeptProjection(outcomes(self._see), cast(Any, database), source, clock=views.clock),
        ]
        self._pass = Pass(self._work)

    def resume(self) -> None:
        """Goes on to its next stop."""
        self._pass.resume(None)

    def stop(self) -> None:
        """Ends it where it is."""
        self._pass.stop()

    def pause(self, kind: str) -> None:
        """Comes to an effect, and stands there, or goes on."""
        if kind == "take":
            self._applied = {}
        if kind not in ("send", "sent"):
            self.unchecked = set()
        if kind == "turn" or (not self.views.calm and self.views.rng.random() >= GOES_ON):
            self._pass.act(Act(kind, None, None))
        if kind == "take" and not self.cuts:
            self.cuts = {place: len(self.views.world.broker.log(*place).cuts) for place in self.views.places}

    def applied(self) -> dict[str, dict[int, str]]:
        """Return what was applied since the last commit."""
        applied, self._applied = self._applied, {}
        return applied

    def _send(self, values: Mapping[RunId, bytes | None]) -> None:
        try:
            self.pause("send")
            self.views.cut("send")
            self.views.topic |= values
            self.views.stale -= values.keys()
            self.unchecked = set(values)
            self.pause("sent")
            self.views.cut("sent")
        except UnreachableError:  # a zombie looks at nothing once it has to take the lock anew
            self.views.stale |= self.unchecked if self.views.owner is not self else set()
            raise

    def _see(self, run: str, seq: int, tool: str) -> None:
        if seq == 1:
            self._applied[run] = {}
        self._applied.setdefault(run, {})[seq] = tool

    def _turn(self, slot: KeptProjection) -> int:
        self.ends, self.cuts = self.views.ends(), {}
        return slot.turn(0.0)

    def _work(self) -> None:
        while True:
            count = sum(self._turn(slot) for slot in self.slots)
            self.idle_ms = 0 if count else self.views.now_ms + IDLE_MS
            self.idle_ends = self.views.ends()
            self.pause("turn")


class Views:
    """The projectors of a world and what they fill. `owner` has the lock; others are zombies.

    `calm`: nobody is killed and everybody reads on. `topic` has the last value of each key of `run-view`, of `stale`
    runs an older one, whose writer had lost the lock and was killed before it could write the newer one. `wrong` is
    what may not be, `sums` by generation of `Outcomes`.
    """

    def __init__(self, world: Surroundings, name: str) -> None:
        self.world, self.rng, self.calm = world, Random(f"views of {name}"), False
        self.counts = world.counts
        self.database = MemoryViewDatabase()
        self.sums: dict[int, Sums] = {}
        there = [topic for topic in TOPICS if topic in world.broker.topics]
        self.places = [(topic, number) for topic in there for number in range(world.settings.partitions)]
        self.topic: dict[RunId, bytes | None] = {}
        self.stale: set[RunId] = set()
        self.wrong: list[str] = []
        self.outcomes: type[Outcomes] = Outcomes
        self.owner: SimProjector | None = None
        self._zombies: list[SimProjector] = []
        self.late: dict[tuple[str, int], tuple[dict[Place, int], Share]] = {}
        """What a generation was before a zombie went on in it: one that takes its place begins there."""
        self._later_ms = 0
        self._begins_ms = world.now_ms + self.rng.choice((0, 0, 300, 2_000, 6_000))
        self._cuts = dict.fromkeys(self.places, 0)
        self._log = world.broker.renumbered
        self._asked: dict[str, int] = {}

    @property
    def now_ms(self) -> int:
        """The time of projectors, which goes on while the world rests."""
        return self.world.now_ms + self._later_ms

    def clock(self) -> float:
        """The clock of projectors: their periods are as much shorter as those of the world."""
        return self.now_ms / 100

    def wait(self, timeout_s: float) -> None:
        """Let the time of projectors pass: what one waits for may never come."""
        self._later_ms += round(timeout_s * 100)

    def ends(self) -> dict[Place, int]:
        """Where the logs end."""
        return {place: self.world.broker.log(*place).end for place in self.places}

    @property
    def slots(self) -> list[KeptProjection]:
        """The projections of whoever has the lock."""
        return self.owner.slots if self.owner else []

    def source(self) -> MemorySource:
        """The logs, to be read without any chance."""
        return MemorySource(self)

    # What happens

    def step(self) -> None:
        """Lets projectors take a step, or not."""
        self._look()
        if self.owner is None:
            if self.now_ms >= self._begins_ms:
                self.owner = self._begin()
            return
        self._trouble(self.owner)
        for projector in (*self._zombies, *((self.owner,) if self.owner else ())):
            if projector.until_ms <= self.now_ms and self._has_work(projector) and self.rng.random() < ACTS:
                self._resume(projector)

    def _trouble(self, owner: SimProjector) -> None:
        drawn = self.rng.random()
        if drawn < DIES:
            self._die(owner)
            self._begins_ms = self.now_ms + self.rng.choice((0, 50, 400, 1_500))
        elif drawn < DIES + FREEZES:
            owner.until_ms = self.now_ms + self.rng.randrange(50, 2_500)
            self._zombies.append(owner)
            self.counts["views.zombies"] += 1
            self.owner = self._begin()
        elif drawn < DIES + FREEZES + REBUILT:
            self.rebuild(self.rng.choice(owner.slots))

    def _has_work(self, projector: SimProjector) -> bool:
        idle = projector.idle_ms > self.now_ms and projector.idle_ends == self.ends()
        return not idle

    def _begin(self) -> SimProjector:
        if self.rng.random() < 0.1:
            self.outcomes = self.rng.choice((Outcomes, LaterOutcomes))
        return SimProjector(self, self.outcomes)

    def _die(self, projector: SimProjector) -> None:
        projector.stop()
        self.counts["views.killed"] += 1
        if projector in self._zombies:
            self._zombies.remove(projector)
            self.stale |= projector.unchecked
        else:
            self.owner = None

    def _resume(self, projector: SimProjector) -> None:
        try:
            projector.resume()
        except Exception as error:  # noqa: BLE001
            self.wrong.append(f"crash: a projector ends with {type(error).__name__}: {error}")
            self._die(projector)

    def _look(self) -> None:
        """Notes which generations were made of what the log does not have any more."""
        broker = self.world.broker
        if broker.renumbered != self._log:  # another cluster: everybody is started again for it
            self._log = broker.renumbered
            self.topic = {}
            for each in self.sums.values():
                each.lost = True
            for projector in (*self._zombies, *((self.owner,) if self.owner else ())):
                self._die(projector)
            self._begins_ms = self.now_ms
        for place, seen in self._cuts.items():
            cuts = broker.log(*place).cuts
            if len(cuts) > seen:
                self._cuts[place] = len(cuts)
                for number in self.database.generations(Outcomes.name):
                    at = self.database.store(Outcomes.name, number).positions().get(place, 0)
                    self.sums[number].lost |= at > min(cuts[seen:])

    def rebuild(self, slot: KeptProjection) -> None:
        """An operator asks for another generation: `refold projection rebuild`."""
        there = self.database.generations(slot.name)
        if all(state == "serving" for state in there.values()):
            self.counts["views.rebuilt"] += 1
            self.create(slot.name, max(there, default=0) + 1, slot.tables, slot.begun())

    # What is done in the database

    def cut(self, kind: str) -> None:
        """Now and then the database does not answer."""
        if not self.calm and self.rng.random() < CUT:
            self.counts["views.cut"] += 1
            raise UnreachableError(f"the database is away ({kind})")

    def create(self, projection: str, number: int, tables: Collection[ViewTable], notes: Mapping[str, str]) -> None:
        """A generation is made."""
        self.database.create(projection, number, tables, notes)
        if projection == Outcomes.name:
            self.sums[number] = Sums(notes["version"])

    def switches(self, projection: str, number: int, projector: SimProjector) -> None:
        """A generation is about to be put in use: it has caught up, and has what erased runs have added."""
        self.counts["views.switched"] += 1
        there = self.database.generations(projection)
        before = next((each for each, state in there.items() if state == "serving"), 0)
        at = self.database.store(projection, number).positions()
        wanted = projector.ends
        if before and before != number and self._goes_on(projection, before, number):
            wanted, erased = self.late.get(
                (projection, before), (self.database.store(projection, before).positions(), None)
            )
            if projection == Outcomes.name:
                self.sums[number].erased = Counter(self.sums[before].erased if erased is None else erased)
        elif before and projection == Outcomes.name and self._erased(number) == self.sums[before].erased:
            # It was lost and has not noticed: a cut is written over before anybody reads there.
            self.sums[number].erased = Counter(self.sums[before].erased)
        if any(at.get(place, 0) < end for place, end in wanted.items()) and not self._is_lost(projection, number):
            self.wrong.append(f"switch: generation {number} of {projection} is at {at}, and not at {wanted}")

    def _erased(self, number: int) -> Share:
        """Rows of erased runs in a generation."""
        found: Share = Counter()
        for tool, erased, n, total in self.database.store(Outcomes.name, number).scan(Outcomes.by_tool):
            found += Counter({(str(tool), "n"): int(n), (str(tool), "total"): int(total)} if erased else {})
        return found

    def _goes_on(self, projection: str, before: int, number: int) -> bool:
        """True if one generation can take over what another has."""
        if self._is_lost(projection, before):
            return False
        one, other = (self.database.store(projection, each).notes()["version"] for each in (before, number))
        return one == other

    def _is_lost(self, projection: str, number: int) -> bool:
        store = self.database.store(projection, number)
        if projection == Outcomes.name:
            return self.sums[number].lost
        if store.notes()["log"] != f"log-{self._log}":
            return True
        return any(self._cuts.values())

    # The end

    def settle(self) -> None:
        """Lets projectors catch up, without any trouble. An operator has views built again that stand still."""
        self.calm = True
        for zombie in list(self._zombies):
            zombie.until_ms = 0
            self._die(zombie)
        quiet, self._asked = 0, {}
        for turn in range(MOST_TURNS):
            self._look()
            self._later_ms += 25
            self.owner = self.owner or self._begin()
            self._resume(self.owner)
            if self.owner is not None:
                self._ask(self.owner, turn)
            quiet = quiet + 1 if self._caught_up() else 0
            if quiet > 3:
                break
        else:
            self.wrong.append(f"stuck: projectors do not catch up, they are at {self._states()}")
        self.calm = False

    def _ask(self, owner: SimProjector, turn: int) -> None:
        for slot in owner.slots:
            if not slot.stopped or turn - self._asked.get(slot.name, -NOTICES) < NOTICES:
                continue
            self._asked[slot.name] = turn
            self.counts["views.stood still"] += 1
            there = self.database.generations(slot.name)
            if not any(self._is_lost(slot.name, number) for number in there):
                self.wrong.append(f"stands still: {slot.stopped}")
            self.create(slot.name, max(there) + 1, slot.tables, slot.begun())

    def _caught_up(self) -> bool:
        ends = self.ends()
        for name in (Shipped.name, Outcomes.name):
            there = self.database.generations(name)
            if list(there.values()) != ["serving"]:
                return False
            at = self.database.store(name, max(there)).positions()
            if any(at.get(place, 0) < end for place, end in ends.items()):
                return False
        return self.owner is not None and not any(slot.stopped for slot in self.owner.slots)

    def _states(self) -> str:
        stopped = [slot.stopped for slot in self.owner.slots] if self.owner else []
        there = {name: self.database.generations(name) for name in self.database.projections()}
        return f"{there}, {stopped}"

    def close(self) -> None:
        """Ends all of them."""
        for projector in (*self._zombies, *((self.owner,) if self.owner else ())):
            projector.stop()


class _Silent:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **more: None


@contextmanager
def silent() -> Iterator[None]:
    """Projectors log nothing meanwhile."""
    with patch.object(service, "_log", _Silent()), patch.object(service, "OUTAGES", _Silent()):
        yield
