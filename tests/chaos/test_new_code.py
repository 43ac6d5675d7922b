"""A deploy of other code on three brokers: a pool, a limit and a version that earlier planners do not have."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from refold.core.ids import home
from refold.dev import process
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime.settings import KafkaSettings
from tests.chaos import raw
from tests.chaos.actor import producer
from tests.chaos.operations import ask_to_end
from tests.chaos.shop import CALLS, NEW_POOL
from tests.chaos.stack import PREFIX, SESSION_MS, Stack, command
from tests.waiting import eventually, under_load

PARTITIONS, PLANNERS = 12, 3
APP = "tests.chaos.shop:app"
BACK_S = under_load(120)
LONG_MS = 25_000
"""A nap that outlives the deploy: its run is live while its partition goes from planner to planner."""


def names(partition: int) -> Iterator[str]:
    """Ids of runs that live in a partition."""
    return (f"o{number}" for number in count() if home(f"o{number}", PARTITIONS) == partition)


def load(sent: list[str], producer: Producer, over: threading.Event) -> None:
    """Starts a run in every partition twice a second; one in ten outlives the deploy."""
    ids = [names(partition) for partition in range(PARTITIONS)]
    for number in count():
        for partition, mine in enumerate(ids):
            (run,) = islice(mine, 1)
            nap_ms = LONG_MS if (number + partition) % 10 == 0 else 500
            value = json.dumps({"run_id": run, "agent": "order", "input": {"nap_ms": nap_ms}}).encode()
            producer.produce(f"{PREFIX}run-requested", value, run, partition)
            sent.append(run)
        producer.poll(0)
        if over.wait(0.5):
            return


def renew(stack: Stack, name: str) -> None:
    """Restart a service, which comes back with the code that is deployed."""
    pid = eventually(lambda: stack.pid(name), within=BACK_S, what=f"{name} lives")
    ask_to_end(pid)
    eventually(lambda: stack.pid(name) not in (None, pid), within=BACK_S, what=f"{name} ends")
    eventually(lambda: stack.works(name), within=BACK_S, what=f"{name} is back at work")


def told(stack: Stack) -> Mapping[str, raw.History]:
    """The history of each run."""
    chain, found = raw.Chain(), dict[str, raw.History]()
    log = raw.scan(stack.dev.kafka, f"{PREFIX}run-log")
    for record in sorted(log, key=lambda record: (record.partition, record.offset)):
        history, _ = chain.feed(record) or (None, [])
        if history is not None:
            found[history.run] = history
    return found


def fields(history: raw.History, kind: str, name: str) -> list[Any]:
    return [event[name] for found, event in history.events if found == kind]


def served(histories: Mapping[str, raw.History], begun: float, ended: float) -> dict[int, float]:
    """The longest time of a deploy in which no entry of a partition was written. **Units**: seconds."""
    times = defaultdict[int, list[float]](list)
    for run, history in histories.items():
        times[home(run, PARTITIONS)] += [at / 1_000 for at in history.appended]
    gaps = dict[int, float]()
    for number in range(PARTITIONS):
        inside = sorted(at for at in times[number] if begun <= at <= ended)
        gaps[number] = max(after - before for before, after in pairwise([begun, *inside, ended]))
    return gaps


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_planners_with_other_pools_limits_and_versions_serve_all_partitions_and_every_run_keeps_its_code(
    tmp_path: Path,
) -> None:
    settings: list[KafkaSettings] = []

    def prepare(kafka: str) -> None:
        settings.append(KafkaSettings(bootstrap=kafka, prefix=PREFIX, partitions=PARTITIONS))
        Topics(settings[0]).apply()

    stack = Stack(
        tmp_path,
        prepare=prepare,
        pairs=PLANNERS,
        kinds=("planner", "executor"),
        app=APP,
        partitions=PARTITIONS,
        brokers=3,
    )
    sent, over, moments = list[str](), threading.Event(), list[float]()
    with stack:
        writer = producer(stack.dev.kafka)
        for name in stack.names:
            eventually(lambda: stack.works(name), within=BACK_S, what=f"{name} works")  # noqa: B023
        loading = threading.Thread(target=load, args=(sent, writer, over), daemon=True)
        loading.start()
        over.wait(5)

        Topics(settings[0], ("default", NEW_POOL)).apply()
        stack.deployed.write_text('{"code": "new"}')
        checks = process.spawn(
            (*command("executor-checks", APP), "--pool", NEW_POOL),
            log=tmp_path / "logs" / "executor-checks.log",
            env={**os.environ, **stack.addresses(), **stack.environment_of("executor-checks"), "PYTHONUNBUFFERED": "1"},
        )
        planners = [name for name in stack.names if name.startswith("planner")]
        for name in planners:
            moments.append(time.time())
            renew(stack, name)
            over.wait(SESSION_MS / 1_000)  # planners of both kinds share the partitions
        moments.append(time.time())
        for name in stack.names:
            if name not in planners:
                renew(stack, name)
        over.wait(3)
        over.set()
        loading.join()
        assert writer.flush(BACK_S) == 0
        done = f"{PREFIX}run-completed"
        eventually(
            lambda: {record.key.decode() for record in raw.scan(stack.dev.kafka, done)} >= set(sent),
            within=BACK_S,
            what="every run is over",
        )
        histories = told(stack)
        process.end(checks, grace=stack.grace)

    gaps = served(histories, moments[0], moments[-1])
    versions, crossed = Counter[str](), 0
    for run in sent:
        history = histories[run]
        version = fields(history, "RunStarted", "version")[0].partition("+")[0]
        versions[version] += 1
        assert fields(history, "RunCompleted", "result") == [f'"{version}"'], (run, history.events)
        assert fields(history, "CallProposed", "tool") == CALLS[version], run
        crossed += len(set(history.actors)) > 1
    sys.stderr.write(
        f"\nruns {dict(versions)}, {crossed} of them driven by several planners; "
        f"longest time without an entry {max(gaps.values()):.1f} s of {moments[-1] - moments[0]:.0f} s\n"
    )
    assert min(versions[version] for version in CALLS) > PARTITIONS
    assert crossed > PARTITIONS
    assert max(gaps.values()) < under_load(SESSION_MS / 1_000), gaps
