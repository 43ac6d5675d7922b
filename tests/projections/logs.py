"""Logs to project: all that is recorded, what tests of recovery leave behind, and worlds of the simulator."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from refold.core.ids import RunId, log_key
from refold.core.topics import RUN_LOG
from refold.engine.adapters.kafka.source import TOPICS
from tests.golden import everything, recording, samples
from tests.projections.viewed import Log, of_broker, of_pairs
from tests.recovery.rig import Rig
from tests.simulator.case import Case
from tests.simulator.workload.schedules import schedule

RECOVERY = ("retried", "retried_change", "retried_limits", "held", "held_signals", "versions", "stalled")


@cache
def recorded() -> Mapping[str, Log]:
    """All that is recorded, by name."""
    platform = everything.build()
    key = log_key(RunId("erased-1"), 2, platform.state("erased-1").head.id)
    platform.write(RUN_LOG, "erased-1", key=key, value=None)  # the platform shows an erasure that is under way
    logs = {"everything": of_broker(platform.broker)}
    logs |= {f"run {name}": of_pairs(pairs) for name, pairs in recording.kept().items()}
    logs |= {f"history {name}": of_pairs(kept["records"]) for name, kept in samples.histories().items()}
    return logs


@cache
def recovered(module: str) -> Mapping[str, Log]:
    """What tests of recovery leave in the log, by their names."""
    rigs: list[Rig] = []

    class Kept(Rig):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            rigs.append(self)

    found: dict[str, Log] = {}
    tests = importlib.import_module(f"tests.recovery.test_{module}")
    homes = [each for each in (tests, importlib.import_module("tests.recovery.retrying")) if hasattr(each, "Rig")]
    kept_in = [(home, home.Rig) for home in homes]
    try:
        for home in homes:
            home.Rig = Kept  # type: ignore[attr-defined]
        for name, test in inspect.getmembers(tests, inspect.isfunction):
            if name.startswith("test_") and not inspect.signature(test).parameters:
                rigs.clear()
                test()
                found |= {f"{name} {n}": of_broker(rig.broker) for n, rig in enumerate(rigs)}
    finally:
        for home, rig_class in kept_in:
            home.Rig = rig_class  # type: ignore[attr-defined]
    return found


@cache
def simulated(seed: int) -> Log:
    """What a world of the simulator has written, with all that was cleaned since."""
    case = Case(*schedule(seed))
    case.run(traced=False)
    written = case.world.witness.written
    found = (record for topic in TOPICS for record in written.get(topic, ()))
    return Log(found, case.world.broker.partitions)
