"""What operations bring: deploys of other code, code that hangs, and what is cleaned or forgotten at the wrong time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from refold.adapters.memory.ledger import MemoryLedger
from refold.core.ids import RunId, hold_key, home
from refold.core.messages import Hold
from refold.core.topics import RUN_SNAPSHOT
from refold.core.wire import codec
from refold.ports.log import Outgoing
from refold.sdk.app import App
from refold.simulator.app import OTHERS, simulated
from refold.simulator.workload.inputs import signal
from refold.simulator.world.broker import SIM_TOPICS, Broker
from refold.simulator.world.groups import Groups
from refold.simulator.world.surroundings import Surroundings

DEPLOYED_MS = 700
"""How long other code is there: enough for some take-overs."""

HELD_MS = 1_500
"""How long it takes until somebody lets a run go that hung."""


class Platform(Protocol):
    """What operations have in their hands: a world."""

    ledger: MemoryLedger
    groups: Groups
    broker: Broker


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


def _clean(world: Platform) -> None:
    """Compacts everything, inputs that nobody has read included."""
    for topic in SIM_TOPICS:
        for partition in range(world.broker.partitions):
            world.broker.compact(topic, partition)


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
    world.app = app
    for process in [process for process in world.groups.processes if process.role == "planner"]:
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
    given = signal(run, f"retry-{world.now_ms}", "retry", partitions=world.settings.partitions)
    again = Outgoing(given.topic, given.partition, given.key or b"", given.value, (), 0)
    world.at(HELD_MS, lambda: world.broker.write(again))


OPERATIONS: Mapping[str, Callable[[Platform], None]] = {
    "expire": _expire,
    "amnesia": _amnesia,
    "clean": _clean,
    "hang": _hang,
    **{f"deploy-{name}": _deploy(app) for name, app in OTHERS.items()},
}
"""By the name of the fault."""
