"""Planner processes that are started, killed and asked to go, and a user who notices how long partitions are away."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import orjson
from benchmarks.engine import APP, AUTHORITY, ROOT, TRUST
from benchmarks.measure import ends, memory_mib, spent_s
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from refold.core.approval.signature import pinned
from refold.core.ids import home
from refold.core.topics import RUN_COMPLETED, RUN_REQUESTED
from refold.dev import process
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime.settings import KafkaSettings

EVERY_S = 0.025
"""Between two questions to a partition: 40 a second each, so a pause is seen to a fortieth of a second."""

GIVE_UP_S = 120.0


@dataclass(slots=True)
class Asked:
    """A question of the user's: a run that ends at once. **Units**: seconds on the monotonic clock; 0: no answer."""

    partition: int
    at: float
    answered: float = 0.0


class User:
    """A thread that asks every partition for a run that needs nothing but the planner, again and again."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self.asked: dict[bytes, Asked] = {}
        self._names = [self._homes(number) for number in range(settings.partitions)]
        self._begin = ends(settings, RUN_COMPLETED)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="user", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Asks no more."""
        self._stopped.set()
        self._thread.join()

    def back_after(self, moment: float) -> float:
        """Waits until every partition has answered a question from after a moment; returns the seconds since it."""
        return max(self._answered_after(moment, number) for number in range(self._settings.partitions)) - moment

    def longest(self, since: float, partitions: set[int]) -> float:
        """The longest that one of these partitions was away: its slowest answer, less what one usually takes.

        Waits until all that was asked up to now is answered.
        """
        upto = time.monotonic()
        mine = [each for each in list(self.asked.values()) if each.at >= since and each.partition in partitions]
        self._until(lambda: all(each.answered for each in mine if each.at <= upto), "answers")
        spans = [each.answered - each.at for each in mine if each.answered]
        # Of what was asked before, much may have fallen into other pauses: a tenth of it did not.
        usual = [each.answered - each.at for each in list(self.asked.values()) if each.answered and each.at < since]
        return max(0.0, max(spans, default=0.0) - sorted(usual)[len(usual) // 10])

    def _answered_after(self, moment: float, partition: int) -> float:
        def first() -> float:
            mine = [each for each in list(self.asked.values()) if each.partition == partition and each.at >= moment]
            return min((each.answered for each in mine if each.answered), default=0.0)

        return self._until(first, f"partition {partition}")

    def _until(self, probe: Callable[[], float], what: str) -> float:
        deadline = time.monotonic() + GIVE_UP_S
        while not (found := probe()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} after {GIVE_UP_S:g} s")
            time.sleep(0.02)
        return found

    def _homes(self, partition: int) -> Iterator[str]:
        tag = os.urandom(3).hex()
        names = (f"ask-{tag}-{number}" for number in count())
        return (name for name in names if home(name, self._settings.partitions) == partition)

    def _work(self) -> None:
        options = {"bootstrap.servers": self._settings.bootstrap, "log_level": 0}
        producer = Producer({**options, "linger.ms": 0})
        consumer = Consumer({**options, "group.id": f"user-{os.getpid()}", "enable.auto.commit": False})
        consumer.assign(self._begin)
        due = time.monotonic()
        while not self._stopped.is_set():
            if time.monotonic() >= due:
                due = max(due + EVERY_S, time.monotonic() - EVERY_S)
                self._ask(producer)
            for message in consumer.consume(200, 0.005):
                if message.error() is None and (asked := self.asked.get(message.key() or b"")) and not asked.answered:
                    asked.answered = time.monotonic()
        producer.flush(10)
        consumer.close()

    def _ask(self, producer: Producer) -> None:
        for number, names in enumerate(self._names):
            run = next(names)
            self.asked[run.encode()] = Asked(number, time.monotonic())
            value = orjson.dumps({"run_id": run, "agent": "at_once"})
            producer.produce(self._settings.prefix + RUN_REQUESTED, value, run, number)
        producer.poll(0)


class Planners:
    """Planner processes on topics of their own; nobody starts one again but we."""

    def __init__(self, bootstrap: str, folder: Path, **environment: str) -> None:
        prefix = f"years{os.urandom(3).hex()}."
        self.settings = KafkaSettings(bootstrap=bootstrap, prefix=prefix)
        Topics(self.settings).apply()
        self._folder = folder
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._living: dict[str, process.Process] = {}
        outer = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        addresses = {"REFOLD_KAFKA__BOOTSTRAP": bootstrap, "REFOLD_KAFKA__PREFIX": prefix, "PYTHONPATH": str(ROOT)}
        addresses["REFOLD_TRUST"] = pinned(TRUST[AUTHORITY.kid])
        self._environment = {**outer, **addresses, **environment}

    def start(self, name: str) -> float:
        """Starts a planner under a name; returns the moment."""
        command = [sys.executable, "-m", "refold", "serve", "planner", "--app", APP, "--member", name]
        log = self._folder / f"{self.settings.prefix}{name}.log"
        begun = time.monotonic()
        self._living[name] = process.spawn(command, log=log, env=self._environment)
        return begun

    def kill(self, name: str) -> float:
        """`kill -9`; returns the moment."""
        begun = time.monotonic()
        process.kill(self._living.pop(name))
        return begun

    def leave(self, name: str) -> float:
        """Asks a planner to stop, as a deploy does, and does not wait; returns the moment."""
        begun = time.monotonic()
        self._living[name].send_signal(signal.SIGTERM)
        return begun

    def memory(self, name: str) -> float:
        """Proportional set size. **Units**: MiB."""
        return memory_mib([self._living[name].pid])

    def rss(self, name: str) -> float:
        """Resident memory, that of shared libraries too. **Units**: MiB."""
        status = Path(f"/proc/{self._living[name].pid}/status").read_text()
        return round(int(status.split("VmRSS:")[1].split()[0]) / 1024, 1)

    def passed(self, places: list[TopicPartition]) -> bool:
        """Whether the group has committed these places."""
        return all(done >= place.offset for place, done in zip(places, self.answered(places), strict=True))

    def answered(self, places: list[TopicPartition]) -> list[int]:
        """Up to where the group has committed the partitions of these places."""
        group = f"{self.settings.prefix}refold-planner"
        consumer = Consumer({"bootstrap.servers": self.settings.bootstrap, "group.id": group, "log_level": 0})
        try:
            asked = [TopicPartition(place.topic, place.partition) for place in places]
            done = {(each.topic, each.partition): max(each.offset, 0) for each in consumer.committed(asked, 10)}
            return [done[place.topic, place.partition] for place in places]
        finally:
            consumer.close()

    def spent(self, name: str) -> float:
        """Processor seconds of a planner since its start: what is left of its way back on a machine that is busy."""
        return round(spent_s(self._living[name].pid), 2)

    def partitions(self, name: str) -> set[int]:
        """What the group has given to a planner."""
        return self._assignment()[name]

    def await_members(self, *names: str) -> None:
        """Waits until just these planners share all partitions."""
        deadline = time.monotonic() + GIVE_UP_S
        while time.monotonic() < deadline:
            given = self._assignment()
            if given.keys() == set(names) and sum(map(len, given.values())) == self.settings.partitions:
                return
            time.sleep(0.1)
        raise TimeoutError(f"{names} do not share the partitions after {GIVE_UP_S:g} s")

    def close(self) -> None:
        """Ends them all."""
        for living in self._living.values():
            process.kill(living)

    def _assignment(self) -> dict[str, set[int]]:
        group = f"{self.settings.prefix}refold-planner"
        (future,) = self._admin.describe_consumer_groups([group], request_timeout=10).values()
        given: dict[str, set[int]] = defaultdict(set)
        for member in future.result().members:
            given[member.client_id] |= {place.partition for place in member.assignment.topic_partitions}
        return {name: numbers for name, numbers in given.items() if numbers}
