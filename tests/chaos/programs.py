"""Random agents on real clusters: the programs of the simulator under the faults of a campaign, judged alike.

    python -m tests.chaos.programs --minutes 20 --seed 1 --folder DIR

What a program must have done is what plain asyncio does with the outcomes that the log has; effects, decisions,
outcomes and dead letters are judged as in every campaign.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from refold.engine.ports.log import Outgoing
from refold.engine.runtime.settings import KafkaSettings
from tests.chaos import campaign, raw
from tests.chaos.actor import Actor, producer
from tests.chaos.app import arguments
from tests.chaos.judge import Evidence, Verdict
from tests.chaos.raw import Chain, Fields, Raw
from tests.chaos.rules import REQUESTER
from tests.chaos.world import RISKY, Groups, Outside, World
from tests.simulator.programs.grammar import Grower, every_part
from tests.simulator.programs.judge import differences, programs_in
from tests.simulator.programs.perform import AGENT
from tests.simulator.reading.history import History
from tests.simulator.world.outside import Outside as Others

TOOLS = ("look", "stamp", "stamp_sync", "poke", "fire", *RISKY)
Given = Callable[[str, str, int], Any]
CANCELLED = 0.06
"""How many runs are cancelled besides those that every campaign cancels."""

MET = (
    *("StepGivenUp", "SleepEnded", "WaitEnded", "WaitExpired", "CallbackCompleted", "CallbackFailed", "RunFailed"),
    *("ChildCompleted", "EventPublished", "AttemptFailed", "CallFailed", "LateResultRecorded", "ApprovalDecided"),
)
"""The events that the programs of a campaign have to have met."""


class Whisperer(Actor):
    """Those outside who tell runs what they wait for, and have the tokens of their callbacks."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(f"whisperer-{settings.prefix}")
        self._settings = settings
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def _work(self) -> None:
        sender, chain = producer(self._settings.bootstrap), Chain()
        seeds: dict[str, str] = {}

        def write(record: Outgoing) -> None:
            sender.produce(self._settings.prefix + record.topic, record.value, record.key, record.partition)

        others = Others(None, self._settings.partitions, at=self._at, write=write)
        for record in raw.tail(self._settings.bootstrap, f"{self._settings.prefix}run-log"):
            if record is None and self._stopped.is_set():
                sender.flush(10)
                return
            told = chain.feed(record) if record else None
            for name, event in told[1] if told else ():
                if name == "RunRequested":
                    seeds[told[0].run] = event["seed"]  # type: ignore[index]
                elif name == "CallbackCreated":
                    others.made(told[0].run, seeds[told[0].run], event["digest"])  # type: ignore[index]
                elif name == "WaitStarted":
                    others.waits(told[0].run, event)  # type: ignore[index]
            self._speak()
            sender.poll(0)

    def _at(self, delay_ms: int, what: Callable[[], object]) -> None:
        heapq.heappush(self._later, (time.monotonic() + delay_ms / 1_000, next(self._numbers), what))

    def _speak(self) -> None:
        while self._later and self._later[0][0] <= time.monotonic():
            heapq.heappop(self._later)[2]()


class ProgramWorld(World):
    """A world whose runs are programs. `trees` are those of the runs that were asked for."""

    def __init__(self, settings: KafkaSettings, outside: Outside, *, seed: int, **more: Any) -> None:
        super().__init__(settings, outside, seed=seed, **more)
        self._seed = seed
        self.trees: dict[str, Any] = {}
        self.whisperer = Whisperer(settings)

    @property
    def troubles(self) -> list[str]:
        return [*super().troubles, *filter(None, (self.whisperer.trouble,))]

    def open(self) -> None:
        """See `World`."""
        super().open()
        self.whisperer.start()

    def close(self) -> None:
        """See `World`."""
        self.whisperer.stop()
        super().close()

    def start_run(self, groups: Groups | None = None) -> str:
        """Asks for the next program; now and then it is cancelled at once, or told something early."""
        self._count += 1
        name = f"{self._tag}{self._count}"
        rng = Random(f"{self._seed}/{name}")
        tree = self.trees[name] = Grower(rng, TOOLS).grow()
        value = {"run_id": name, "agent": AGENT, "input": {"tree": tree}, "requester": REQUESTER}
        self.sent[name] = time.monotonic()
        self._send("run-requested", name, json.dumps(value).encode())
        if any(part["do"] == "wait" for part in every_part(tree)) and rng.random() < 0.3:
            said = {"kind": "signal", "run_id": name, "signal_id": "s-0", "name": "go", "data": {"n": 1}, "actor": "x"}
            self._send("run-signalled", f"{name}/s-0", json.dumps(said).encode())
        if rng.random() < CANCELLED:
            self.cancel(name)
        return name

    def _evidence(self, found: Mapping[str, list[Raw]]) -> Evidence:
        evidence = super()._evidence(found)
        evidence.programs = self.trees
        for record in found["run-signalled"]:
            if record.value:
                evidence.said.add(("run-signalled", record.partition, record.offset))
        return evidence

    def judge(self) -> Verdict:
        """See `World`. What programs have done plain asyncio judges."""
        verdict = super().judge()
        log = raw.scan(self.settings.bootstrap, f"{self.settings.prefix}run-log")
        problems, counts = objections(log)
        verdict.wrong += problems
        verdict.counts.update(counts)
        return verdict


def objections(log: Iterable[Raw], given: Given = arguments) -> tuple[list[str], Counter[str]]:
    """What is wrong with the programs of a run log, and what was counted. `given`: what they give their tools."""
    problems: list[str] = []
    counts: Counter[str] = Counter()
    told = History()
    entries = [entry for record in log for entry in told.follow(record)]  # type: ignore[arg-type]
    runs = programs_in(iter(entries))
    for name, (tree, history) in runs.items():
        counts["programs"] += 1
        counts.update(f"program.{kind.rpartition('.')[2]}" for entry in history for kind, _ in entry["events"])
        problems += differences(name, tree, history, partial(given, name))
    problems += families(entries)
    return problems, counts


def families(entries: Sequence[Fields]) -> Iterator[str]:
    """Each child was started by its parent, once, ended as its parent has heard, and with it unless it may go on.

    One that failed may have gone on since, by a retry, without its parent.
    """
    events = [(entry["run_id"], entry["at_ms"], *_named(each)) for entry in entries for each in entry["events"]]
    ends: dict[str, list[tuple[str, Fields]]] = {}
    for run, _, kind, event in events:
        if kind in raw.TERMINAL:
            ends.setdefault(run, []).append((kind, event))
    started: dict[str, Fields] = {}
    sources: dict[str, list[str]] = {}
    for run, _, kind, event in events:
        if kind == "RunRequested" and event.get("forked"):
            sources[run] = event["forked"]["lineage"]
        elif kind == "ChildStarted":
            started[f"{run}.{event['step']}"] = event
        elif kind == "EventPublished":
            started |= {f"{run}.{event['step']}_{number}": event for number, _ in enumerate(event["agents"], 1)}
        elif kind == "ChildCompleted":
            name = f"{run}.{event['step']}"
            told = event["status"], event["result"]
            # A fork keeps the entries of its source, whose child it was that ended.
            parents = [run, *sources.get(run, [])]
            ended = [end for parent in parents for end in ends.get(f"{parent}.{event['step']}", [])]
            if told not in [(_WORDS.get(end), last.get("result", "null")) for end, last in ended]:
                yield f"{run} was told that {name} is {told[0]} with {told[1]}, and it is {ended}"
    for run, _, kind, event in events:
        asked = started.get(run)
        if kind == "RunRequested" and "." in run:
            if asked is None:
                yield f"{run} was started by nobody"
            elif "input" in asked and (asked["agent"], asked["input"]) != (event["agent"], event["input"]):
                yield f"{run} is not what its parent has started"


_WORDS = {"RunCompleted": "completed", "RunFailed": "failed", "RunCancelled": "cancelled"}


def _named(event: Any) -> tuple[str, Fields]:
    return event[0].rpartition(".")[2], event[1]


def full(seed: int, minutes: float) -> campaign.Plan:
    """So many minutes of random faults."""
    return campaign.Plan(
        seed, minutes * 60, pause_s=(0.3, 2.5), in_flight=45, poison=20, quiet_s=120.0, world=ProgramWorld
    )


def main() -> int:
    """Runs it from the command line; 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    parser.add_argument("--minutes", type=float, default=20.0, help="of random faults")
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="refold-programs-"))
    report = campaign.run(full(options.seed, options.minutes), folder)
    print(json.dumps(report.as_json(), indent=2))  # noqa: T201
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
