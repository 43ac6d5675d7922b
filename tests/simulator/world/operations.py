"""What operations bring: deploys of other code, code that hangs, and what is cleaned or forgotten at the wrong time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from refold.core.defaults import CONVERSATION_BYTES
from refold.core.ids import RunId, hold_key, home
from refold.core.messages import Hold
from refold.core.run.erased import erased_key
from refold.core.run.log import FORKED, LATE_MS
from refold.core.run.snapshot import MARKS_KEY
from refold.core.topics import APPROVAL_REQUESTED, APPROVAL_VOTED, CATALOG, RUN_LOG, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.executor.inputs import SeenCalls
from refold.engine.executor.service import Executor
from refold.engine.planner.intake.inputs import FROM_PEOPLE
from refold.engine.planner.service import Planner
from refold.engine.ports.log import Outgoing
from refold.sdk.app import App
from tests.simulator.app import BEFORE, OTHERS, simulated
from tests.simulator.settings import CLAIMS
from tests.simulator.workload.inputs import operation
from tests.simulator.world.broker import SIM_TOPICS, Broker
from tests.simulator.world.faults import LOSES_LEDGER, MODES, TRUNCATES
from tests.simulator.world.groups import Groups
from tests.simulator.world.open_ledger import OpenLedger
from tests.simulator.world.surroundings import RESENT_MS, Surroundings, limited

DEPLOYED_MS = 700
"""How long other code is there, or another blob store: enough for some take-overs."""

REPEATED = 0.3
"""The share of records that a mirror repeats."""

MIRRORING_MS = LATE_MS + 1_000
"""How long a platform is away of which a mirror has forked runs: order is told to be lost by the time alone."""

LOOKS = 4
"""How often the operator looks for histories that have to be repaired, once they may have been found."""

ELSEWHERE = 0.5
"""The share of mirrors that have a Redis of their own."""

MOST_LOST = 5
"""How many records a partition may lose, more than a run with one call has."""

ROLLING_MS = 1_000
"""How long some planners have the app of before: a run of the newest version needs that long, and half of it more."""

HELD_MS = 1_500
"""How long it takes until somebody lets a run go that hung."""


AHEAD_MS, DAY_MS = 400, 86_400_000
"""How long and how far the ledger's own clock is ahead: longer than its leases, and more than any lease lasts."""


class Platform(Protocol):
    """What operations have in their hands: a world."""

    ledger_ahead_ms: int
    ledger: OpenLedger
    groups: Groups
    broker: Broker

    def hit(self, *kinds: str) -> bool:
        """Whether a fault of one of these kinds has struck."""
        ...


def _expire(world: Platform) -> None:
    """The ledger is past its retention: what is done is not known any more."""
    content = world.ledger.snapshot()
    entries = {place: entry for place, entry in content.entries.items() if entry.state != "done"}
    world.ledger.rollback(content._replace(entries=entries))


def _amnesia(world: Platform) -> None:
    """Group offsets and ledger are gone, and everything starts anew: an ordinary day."""
    world.broker.committed.clear()
    world.ledger.wipe()
    world.groups.die_all()


def _outage(world: Platform) -> None:
    """Nobody is there for long: offsets and what is done are forgotten, requests are old, and planners come last."""
    assert isinstance(world, Surroundings), "a world has surroundings"
    world.broker.committed.clear()
    _expire(world)
    for process in list(world.groups.processes):
        late = process.role == "planner"
        world.groups.die(process, away_ms=world.settings.outage_ms + late * DEPLOYED_MS)


def _clean(world: Platform) -> None:
    """Compacts everything that may be cleaned by now: what people send stays for longer than any outage."""
    for topic in (each for each in SIM_TOPICS if each not in FROM_PEOPLE and each != CATALOG):
        for partition in range(world.broker.partitions):
            world.broker.compact(topic, partition)


def _mirror(world: Platform) -> None:
    """The platform begins anew on a mirror: some records are there twice, it was cleaned, and there are no offsets.
    What is left has other offsets than before.

    Now and then it has another Redis, which knows nothing. Where somebody has forked a run, only the time at which
    copies came tells that order was lost: they come later than the log may be cleaned, and the operator repairs.
    """
    assert isinstance(world, Surroundings), "a world has surroundings"
    world.counts["mirrored"] += 1
    if not world.witness.history.void:
        _copy(world)
        world.groups.die_all()
        return
    world.counts["mirrored.forked"] += 1
    world.lost_ms += MIRRORING_MS
    for process in list(world.groups.processes):
        world.groups.die(process, away_ms=MIRRORING_MS)
    world.at(MIRRORING_MS - 1, lambda: _copy(world))
    world.at(MIRRORING_MS + HELD_MS, lambda: _repair(world))


def arrive(world: Platform, record: Outgoing, mirrored: int) -> None:
    """What was delayed is written, by somebody who knew of so many mirrors.

    A run that it forks in a mirror is one whose order was lost: where its planner dies before it has buried what came
    late, whoever takes over cannot tell it from the copies, and the operator repairs (docs/limits.md).
    """
    assert isinstance(world, Surroundings), "a world has surroundings"
    history, counts = world.witness.history, world.counts
    void = history.void
    world.broker.write(record)
    if counts["mirrored"] > mirrored and history.void > void and not counts["mirrored.forked"]:
        counts["mirrored.forked"] += 1
        world.at(HELD_MS, lambda: _repair(world))


def _copy(world: Platform) -> None:
    assert isinstance(world, Surroundings), "a world has surroundings"
    for topic in SIM_TOPICS:
        for partition in range(world.settings.partitions):
            for record in list(world.broker.log(topic, partition).records):
                if record.value and world.chance.rng.random() < REPEATED:
                    world.counts["repeated"] += 1
                    world.counts[f"repeated: {topic}"] += 1
                    world.witness.toil.stale(record.value)
                    world.broker.repeat(record)
    _renumber(world)
    if world.chance.rng.random() < ELSEWHERE:
        world.counts["mirrored.elsewhere"] += 1
        world.ledger.wipe()


def _renumber(world: Platform) -> None:
    assert isinstance(world, Surroundings), "a world has surroundings"
    _clean(world)
    for topic in SIM_TOPICS:
        for partition in range(world.settings.partitions):
            world.witness.renumbered(topic, partition)
    for record in world.broker.renumber():
        world.witness.moved(record)
    world.broker.committed.clear()


def _mirror_plain(world: Platform) -> None:
    """The platform begins anew on a copy that has other offsets, and nothing twice: no position holds.

    What people have sent was cleaned, too, as far as it is settled: it lay there for longer than it is kept at least.
    """
    assert isinstance(world, Surroundings), "a world has surroundings"
    settled = world.broker.committed.get("refold-planner", {})
    for topic in FROM_PEOPLE:
        for partition in range(world.settings.partitions):
            world.broker.compact(topic, partition, below=settled.get((topic, partition), 0))
    world.counts["mirrored.plain"] += 1
    _renumber(world)
    world.groups.die_all()


def _repair(world: Platform, looks: int = LOOKS) -> None:
    """The operator names the history that counts of each run that stands still because its log has two of it."""
    assert isinstance(world, Surroundings), "a world has surroundings"
    history = world.witness.history
    for run in [run for run in history.runs.values() if run.id in history.forked]:
        place = home(run.id, world.settings.partitions)
        planner = world.groups.owners["planner"][place].services[0]
        lane = planner.lanes.get(place) if isinstance(planner, Planner) else None
        if lane is not None and lane.log.fold.frozen.get(RunId(run.id)) == FORKED:
            world.counts["repairs"] += 1
            history.repaired.add(run.id)
            named = {"head": run.head.hex()}
            given = operation(run.id, f"repair-{world.now_ms}", "repair", named, partitions=world.settings.partitions)
            world.broker.write(Outgoing(given.topic, given.partition, given.key or b"", given.value, (), 0))
    if looks:
        world.at(HELD_MS, lambda: _repair(world, looks - 1))


_SETS_BACK = ("expire", "outage", "mirror", "ledger-ahead")
"""Faults in which the ledger forgets by its own clock, or is another."""


def _truncate(topic: str) -> Callable[[Platform], None]:
    """The last records of a partition are lost, though they were acknowledged; once is enough.

    Of a run that was over none is (in a mirror they lie behind its end, too): its outcome was told, and a planner that
    knows it keeps to it. What a planner leaves behind that dies before it notices nobody can tell, nor who takes over
    what is just lost, nor what was claimed where the ledger is lost as well. Who has said something that is lost, and
    has no answer, says it again. Of questions only those are lost that are over: nobody asks an open one again
    (docs/limits.md). Of snapshots no marker is lost: what is erased without one stays where it lies.
    """

    def truncate(world: Platform) -> None:
        lost_ledger = world.hit(*LOSES_LEDGER, *_SETS_BACK)
        assert isinstance(world, Surroundings), "a world has surroundings"
        rng, settings = world.chance.rng, world.settings
        drawn = rng.randrange(settings.partitions)
        places = ((drawn + more) % settings.partitions for more in range(settings.partitions))
        partition = next((each for each in places if world.broker.log(topic, each).records), drawn)
        log = world.broker.log(topic, partition)
        end = max(log.start, log.end - rng.randint(1, MOST_LOST))
        if topic == RUN_LOG:
            over = (run for run in world.witness.history.runs.values() if run.ends)
            known = {head.hex().encode() for run in over for head in run.heads}
            told = (record.offset + 1 for record in log.records if (record.key or b"")[-32:] in known)
            end = max(end, *told, 0)
        if topic == APPROVAL_REQUESTED:
            asked = {name.encode() for name in world.witness.approvals.open}
            end = max(end, *(record.offset + 1 for record in log.records if record.key in asked), 0)
        if topic == RUN_SNAPSHOT:  # the marker of a run is written once, before anything of it is erased
            marked = {erased_key(RunId(run)) for run in world.erasures.marked}
            end = max(end, *(record.offset + 1 for record in log.records if record.key in marked), 0)
        if end == log.end or world.counts["truncated"]:
            return
        if topic == CLAIMS and (lost_ledger or world.counts["wiped"]):
            return
        if any(each.rebalances or each.cursors.awaits(topic, partition) for each in world.groups.processes):
            return
        if topic == CLAIMS:
            world.chance.never |= {each for each in MODES if any(lost in each for lost in (*LOSES_LEDGER, *_SETS_BACK))}
        was, lost = log.end, log.read(end, log.end)
        world.broker.truncate(topic, partition, end)
        world.archive.written += 1  # what archivists have read is not there
        world.counts["truncated"] += 1
        world.counts[f"truncated: {topic}"] += 1
        for record in lost if topic in (*FROM_PEOPLE, APPROVAL_VOTED) else ():
            if record.value and not record.read_headers() and not world.witness.answered(record):
                again = Outgoing(topic, partition, record.key or b"", record.value, (), 0)
                world.at(RESENT_MS, partial(world.send, again))
        world.witness.forgets(topic, partition, end, was)
        world.regrown[topic, partition] = was
        if topic == RUN_LOG:
            logs = [world.broker.log(topic, number).records for number in range(settings.partitions)]
            world.witness.loses(logs)

    return truncate


def _newer(world: Platform) -> None:
    """Planners of a newer version had the partitions, and are gone: what they have written nobody here can read."""
    _spoil(world, "snapshot.newer", lambda value: b"\xff" * 8 + value)


def _hole(world: Platform) -> None:
    """One record of each snapshot is gone, which no reader is told."""
    _spoil(world, "snapshot.holed", None)


def _spoil(world: Platform, what: str, written: Callable[[bytes], bytes] | None) -> None:
    """Takes one record of each snapshot that is in force, or writes it anew, and everybody dies.

    Of rows only while the log has these runs: of one that was erased nothing else tells (docs/limits.md).
    """
    assert isinstance(world, Surroundings), "a world has surroundings"
    kinds = (b"run/", *((b"over/",) if not world.erasures.ever else ()), *((MARKS_KEY,) if written else ()))
    for partition in range(world.settings.partitions):
        log = world.broker.log(RUN_SNAPSHOT, partition)
        last = {record.key: record for record in log.records if record.key and record.key.startswith(kinds)}
        if not (found := [record for record in last.values() if record.value]):
            continue
        record = world.chance.rng.choice(found)
        world.counts[what] += 1
        if written is None:
            log.records.remove(record)
        else:
            world.broker.write(
                Outgoing(RUN_SNAPSHOT, partition, record.key or b"", written(record.value or b""), (), 0)
            )
    world.groups.die_all()


def _deploy(app: App) -> Callable[[Platform], None]:
    def deploy(world: Platform) -> None:
        assert isinstance(world, Surroundings), "a world has surroundings"
        _install(world, app)
        world.counts["deploys"] += 1
        world.at(DEPLOYED_MS, lambda: _install(world, simulated))

    return deploy


def _install(world: Platform, app: App) -> None:
    """Has planners run another app: they are all started again."""
    assert isinstance(world, Surroundings), "a world has surroundings"
    world.app = limited(app) if world.settings.limited else app
    for process in [process for process in world.groups.processes if process.role == "planner"]:
        world.groups.die(process)


def _roll(world: Platform) -> None:
    """A deploy goes from planner to planner: every other one, and if it is alone that, has the app of before so far."""
    assert isinstance(world, Surroundings), "a world has surroundings"
    planners = [process for process in world.groups.processes if process.role == "planner" and process.state == "up"]
    for process in planners[::2]:
        world.apps[process.membership.member] = limited(BEFORE) if world.settings.limited else BEFORE
        world.groups.die(process)
    world.counts["deploys.mixed"] += len(planners) > 1
    world.counts["deploys"] += 1
    world.at(ROLLING_MS, lambda: _rolled(world))


def _rolled(world: Platform) -> None:
    """The deploy has come to the others, too."""
    assert isinstance(world, Surroundings), "a world has surroundings"
    old = [process for process in world.groups.processes if process.membership.member in world.apps]
    world.apps.clear()
    for process in old:
        world.groups.die(process)


def _hang(world: Platform) -> None:
    """The code of a run never returns: the watchdog of its planner takes it from everybody, and ends the process."""
    assert isinstance(world, Surroundings), "a world has surroundings"
    live = [run for run in world.witness.history.runs.values() if not run.over]
    if not live:
        return
    run = world.chance.rng.choice(live).id
    place, world.counts["hung"] = home(run, world.settings.partitions), world.counts["hung"] + 1
    hold = Hold(RunId(run), "quarantined", "hung", "its code held its planner", at_ms=world.now_ms)
    world.broker.write(Outgoing(RUN_SNAPSHOT, place, hold_key(RunId(run)), codec.encode(hold), (), 0))
    world.groups.die(world.groups.owners["planner"][place])
    given = operation(run, f"retry-{world.now_ms}", "retry", partitions=world.settings.partitions)
    again = Outgoing(given.topic, given.partition, given.key or b"", given.value, (), 0)
    world.at(HELD_MS, lambda: world.broker.write(again))


def _ahead(world: Platform) -> None:
    """The ledger's own clock goes a day ahead, and is set right a little later."""
    assert isinstance(world, Surroundings), "a world has surroundings"
    world.counts["ledger.ahead"] += 1
    world.ledger_ahead_ms = DAY_MS
    world.at(AHEAD_MS, partial(setattr, world, "ledger_ahead_ms", 0))


def _other_store(world: Platform) -> None:
    """All are deployed with another blob store, which has nothing, and back: what was kept there is copied."""
    assert isinstance(world, Surroundings), "a world has surroundings"
    if world.counts["stores"]:
        return
    world.counts["stores"] += 1
    world.store.swap()
    world.groups.die_all()

    def back() -> None:
        world.store.swap()
        world.groups.die_all()

    world.at(DEPLOYED_MS, back)


def _unlearn(world: Platform) -> None:
    """All executors forget what orders have brought of earlier calls."""
    assert isinstance(world, Surroundings), "a world has surroundings"
    for process in world.groups.processes:
        for service in process.services:
            if isinstance(service, Executor):
                service._outbox.calls_seen = SeenCalls(CONVERSATION_BYTES, 0)


OPERATIONS: Mapping[str, Callable[[Platform], None]] = {
    "expire": _expire,
    "amnesia": _amnesia,
    "outage": _outage,
    "mirror": _mirror,
    "clean": _clean,
    "hang": _hang,
    "deploy-rolling": _roll,
    "ledger-ahead": _ahead,
    "mirror-plain": _mirror_plain,
    "store-other": _other_store,
    "unlearn": _unlearn,
    "snapshot-newer": _newer,
    "snapshot-holed": _hole,
    **{mode: _truncate(topic) for mode, topic in TRUNCATES.items()},
    **{f"deploy-{name}": _deploy(app) for name, app in OTHERS.items()},
}
"""By the name of the fault."""
