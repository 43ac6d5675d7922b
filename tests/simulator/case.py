"""One case from its first input to its rest: a safety phase with faults, then time to heal."""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from random import Random
from unittest.mock import patch

from refold.core.run import snapshot
from refold.core.topics import CATALOG, DEAD_LETTERS
from refold.engine.planner.service import Planner
from refold.engine.ports.log import Outgoing
from refold.engine.relay.service import Relay
from tests.simulator import families, generations, views
from tests.simulator.checker import kept, objections
from tests.simulator.copying import Forking
from tests.simulator.programs.grammar import words
from tests.simulator.programs.verdict import verdict
from tests.simulator.reading.values import Datum
from tests.simulator.settings import SimSettings
from tests.simulator.workload.inputs import ClientInput, Scenario, operation
from tests.simulator.workload.minds import mind_schedule
from tests.simulator.workload.programs import program_schedule, pruned, trees_in
from tests.simulator.workload.schedules import schedule, spare
from tests.simulator.world.archive import Demand
from tests.simulator.world.broker import SIM_TOPICS
from tests.simulator.world.faults import Chance, Fault
from tests.simulator.world.law import Decree, decree, enact
from tests.simulator.world.operations import OPERATIONS
from tests.simulator.world.outside import Outside
from tests.simulator.world.people import People, Say
from tests.simulator.world.tools import Workshop
from tests.simulator.world.upgrades import Upgrades
from tests.simulator.world.views import Views, silent
from tests.simulator.world.world import World

HEAL_MS = 60_000
"""Virtual time that a case gets to come to rest after its last fault: many times the longest deadline."""

REST_MS = 700
"""Virtual time without anything to do that counts as rest: longer than any period at which a service looks around."""

SLEEP_MS = 300
"""A planner lets go of a run that sleeps for so long; outside it is ten minutes."""

_AGAIN_MS = 3_500
"""How long the operator waits before saying it once more."""


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """How a case went. `kinds` has what each boundary was; `struck` the faults that happened."""

    wrong: tuple[str, ...]
    kinds: tuple[str, ...]
    struck: tuple[str, ...]
    counts: Mapping[str, int]
    trace: str = ""
    report: str = ""


class Case:
    """A scenario in a world."""

    def __init__(self, scenario: Scenario, chance: Chance, faults: Iterable[Fault] = ()) -> None:
        settings = replace(SimSettings(), **scenario.changes)
        self.scenario = scenario
        self.world = World(Workshop(scenario.scripts), chance, dict(faults), settings=settings)
        self.world.witness.on_entry = self._look_after
        struck = " ".join(map(str, sorted(self.world.faults.items())))
        self.views = Views(self.world, f"{scenario.name} {struck}") if settings.projectors else None
        self._signals = 0
        later = partial(self.world.at, waits=False)
        self._outside = Outside(scenario.replies, settings.partitions, at=later, write=self.world.broker.write)
        self._upgrades = Upgrades(
            scenario.name, scenario.upgrades, settings.partitions, at=later, publish=self._publish
        )
        self._retries: Counter[str] = Counter()
        self._forking = Forking(self.world, scenario, self._publish, self._outside)
        self._pauses = Random(f"pauses of {scenario.name}")
        self._own = Random(f"operator of {scenario.name}")
        self._rest_since: int | None = None
        self._moved = (0, 0)

    def run(self, *, traced: bool = True) -> CaseOutcome:
        """Drives the world until it is at rest, and checks it. `traced` costs a tenth more and gives the trace hash."""
        with patch.object(snapshot, "REST_MS", SLEEP_MS):
            return self._run(traced=traced)

    def _run(self, *, traced: bool) -> CaseOutcome:
        world = self.world
        if self.scenario.policy:
            self._convene()
        if self.scenario.rollout_ms >= 0:
            world.at(self.scenario.rollout_ms, lambda: OPERATIONS["deploy-rolling"](world))
        for given in self.scenario.inputs:
            world.at(given.at_ms, partial(self._publish, given))
        wrong = self._viewed() if self.views else self._survive()
        for process in world.groups.processes:
            world.groups.collect(process)
        self._count()
        return CaseOutcome(
            wrong=wrong,
            kinds=tuple(world.kinds),
            struck=tuple(world.struck),
            counts=Counter(world.counts),
            trace=blake2b(repr(world.trace).encode(), digest_size=16).hexdigest() if traced else "",
            report=self._report(wrong) if wrong else "",
        )

    def _convene(self) -> None:
        world, scenario = self.world, self.scenario
        world.witness.on_question = self._people(scenario.people, silent=scenario.silent).asked
        enact(world, scenario.policy)
        for order in scenario.decrees:
            world.at(order.at_ms, partial(self._decree, order))

    def _people(self, script: Sequence[Say] | None, *, silent: bool) -> People:
        return People(self.world, script, self._found, silent=silent, looks_ms=self.scenario.operator_ms)

    def _decree(self, order: Decree) -> None:
        decree(self.world, order)
        if order.change in ("rotate", "revoke"):
            for process in [process for process in self.world.groups.processes if process.role == "approval"]:
                self.world.groups.die(process)

    def _survive(self) -> tuple[str, ...]:
        """What is wrong at the end. An error that a service raises is wrong too: in production it costs the process."""
        try:
            self.world.groups.start()
            return self._judge()
        except Exception as error:  # noqa: BLE001
            place = traceback.extract_tb(error.__traceback__)[-1]
            return (f"crash: {type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})",)

    def _viewed(self) -> tuple[str, ...]:
        assert self.views is not None, "somebody keeps views"
        try:
            with silent():
                return self._survive()
        finally:
            self.views.close()

    def _judge(self) -> tuple[str, ...]:
        rested = self._drive()
        if self.world.settings.archivists:
            if self.views:
                self.views.settle()  # tombstones are kept for longer than projectors are away
            rested = rested and self._clean() and self._repeat()
        found = [*objections(self.world, self.scenario, at_rest=rested), *(() if rested else self._stuck())]
        found += views.objections(self.views) if self.views else ()
        return (*found, *verdict(self.world)) if self.scenario.programs else tuple(found)

    def _clean(self) -> bool:
        """Weeks go by: the brokers drop what was erased, tombstones too. False: the world does not come to rest."""
        world = self.world
        for topic in (each for each in SIM_TOPICS if each != CATALOG):
            for partition in range(world.settings.partitions):
                world.broker.compact(topic, partition, tombstones=True)
        world.archive.written += 1  # what archivists read is not what it was
        rested = self._drive()
        world.erasures.wrong += [*world.erasures.left(), *kept(world)] if rested else ()
        return rested

    def _repeat(self) -> bool:
        """Who has asked for a run that is erased by now asks once more, half of the time planners that have taken over.

        An id stays known by its row alone: of a run that was erased before a planner had kept one, nobody knows.
        """
        world, own = self.world, Random(f"again of {self.scenario.name}")
        if own.random() < 0.5:
            world.groups.die_all()
        for given in self.scenario.inputs:
            run = (given.key or b"").decode()
            if given.kind == "run" and run in world.erasures.ever:
                known = run in world.erasures.known
                world.counts["erased.repeated" if known else "erased.forgotten"] += 1
                if known:
                    self._publish(given)
        return self._drive()

    def _count(self) -> None:
        world = self.world
        world.counts["erased"] += len(world.erasures.ever)
        world.counts["markers.gone"] += world.erasures.gone
        world.counts["void_records"] += world.witness.history.void
        world.counts["limits.told"] += world.witness.history.limits.judged if world.struck else 0
        world.counts["limits.rest"] += bool(world.witness.history.limits.rest)
        world.counts["limits.of_several"] += world.witness.history.limits.tenants > 1
        world.counts.update(world.witness.begun.reached)
        world.counts["claims_refused"] += world.witness.void_claims
        world.counts["dead_letters"] += len(world.witness.laid(*DEAD_LETTERS))

    def _drive(self) -> bool:
        world = self.world
        deadline = world.now_ms + world.chance.until_ms + HEAL_MS
        while world.now_ms < deadline + world.lost_ms:
            moved = world.round()
            if self.views:
                self.views.step()
            if moved:
                continue
            if self._rests():
                return True
            world.advance()
        return False

    def _rests(self) -> bool:
        world = self.world
        if world.pending or not all(process.quiet for process in world.groups.processes) or not self._all_over():
            self._rest_since = None
            return False
        moved = len(world.struck), sum(map(len, world.witness.written.values()))
        if self._rest_since is None or moved != self._moved:
            self._rest_since, self._moved = world.now_ms, moved
        return world.now_ms - self._rest_since >= REST_MS

    def _all_over(self) -> bool:
        ledger = self.world.ledger
        if any(ledger.outbox().values()) or any(ledger.leases().values()) or not self._idle():
            return False
        wanted = {i.key.decode() for i in self.scenario.inputs if i.key and i.kind in ("run", "repeat", "conflict")}
        wanted |= families.awaited(self.world) | generations.awaited(self.world) - generations.vanished(self.world)
        runs = self.world.witness.history.runs
        return wanted <= runs.keys() | self.world.parked() and all(run.over for run in runs.values())

    def _idle(self) -> bool:
        services = [service for process in self.world.groups.processes for service in process.services]
        if not all(service.idle for service in services if isinstance(service, Relay)):
            return False
        # One that has lost its question for the time decides nothing, and asks again later than anybody rests.
        return all(lane.clock.fresh for service in services if isinstance(service, Planner) for lane in service.lanes)

    def _publish(self, given: ClientInput) -> None:
        if given.kind == "erase":
            self.world.archive.demands.append(Demand((given.key or b"").decode()))
            return
        self.world.send(Outgoing(given.topic, given.partition, given.key or b"", given.value, (), 0))

    # The operator

    def _look_after(self, entry: Datum) -> None:
        kinds = {name.rpartition(".")[2] for name, _ in entry["events"]}
        run = self.world.witness.history.runs[entry["run_id"]]
        if self._forking.took(run, entry):
            return
        self.world.counts["in_doubt"] += "CallDoubted" in kinds
        self.world.counts["held"] += "CallHeld" in kinds
        self.world.counts["signals.taken"] += "WaitEnded" in kinds
        self.world.counts["signals.dropped"] += "SignalDropped" in kinds
        self.world.counts["callbacks.answered"] += "CallbackCompleted" in kinds or "CallbackFailed" in kinds
        if "RunStarted" in kinds:
            self._upgrades.began(run)
        if kinds & {"RunPaused", "RunForked"} and run.pauses.own:
            self.world.counts["pauses"] += 1
            self.world.at(self._pauses.choice((20, 300, 1_500, 4_000)), lambda: self._resume(entry["run_id"]))
        for kind, event in entry["events"]:
            if kind.endswith("CallbackCreated"):
                self._outside.made(run.id, run.seed, event["digest"])
            elif kind.endswith("WaitStarted") and self.scenario.programs:
                self._outside.waits(entry["run_id"], event)
        # People may have been asked whom no policy in force names any more.
        if "RunFailed" in kinds and self._retries[entry["run_id"]] < self.scenario.retries:
            self._retries[entry["run_id"]] += 1
            self.world.at(self._own.randrange(1_500), lambda: self._retry(entry["run_id"]))
        if kinds & {"CallDoubted", "CallHeld", "ApprovalDecided"}:
            self.world.at(self.scenario.operator_ms, lambda: self._resolve(entry["run_id"]), waits=False)

    def _retry(self, name: str) -> None:
        """Has a run go on that has failed."""
        run, rng = self.world.witness.history.runs[name], self._own
        steps = sorted(step for step in run.calls if step > 0)
        data = {"seq": run.ends[-1][1], "from": rng.choice([0, 0, *steps])}
        self._signals += 1
        given = operation(name, f"op-{self._signals}", "retry", data, partitions=self.world.settings.partitions)
        self.world.counts["retries"] += 1
        self._publish(given)

    def _resume(self, name: str) -> None:
        """Lets a run go on, and says so until it does."""
        run, world = self.world.witness.history.runs.get(name), self.world
        if run is None or run.over or not run.pauses.own:
            return
        self._signals += 1
        self._publish(operation(name, f"op-{self._signals}", "resume", partitions=world.settings.partitions))
        world.at(_AGAIN_MS, lambda: self._resume(name))

    def _resolve(self, name: str) -> None:
        """Looks at the calls in doubt and says what is true, or what the scenario wants to be said."""
        world, run = self.world, self.world.witness.history.runs.get(name)
        if run is None:  # the log has lost it meanwhile
            return
        for call in run.calls.values():
            if call.phase not in ("doubt", "held") or call.asked or run.over:
                continue
            verdict, result = self._found(call.key)
            if call.phase == "held":  # nothing has happened, and what becomes of it is as the operator likes
                verdict = self._own.choice(("did_not_happen", "did_not_happen", "give_up", *self._may_answer))
            elif (call.effect, verdict) == ("once", "did_not_happen"):
                verdict = "give_up"  # nobody is named who might let it out again
            data = {"step": call.step, "attempt": call.attempt, "verdict": verdict}
            if verdict == "happened":
                data["result"] = json.loads(result)
            self._signals += 1
            self._publish(operation(name, f"op-{self._signals}", "resolve", data, partitions=world.settings.partitions))
            world.at(_AGAIN_MS, lambda: self._resolve(name), waits=False)

    @property
    def _may_answer(self) -> tuple[str, ...]:
        """A result by hand is for people alone where there are any."""
        return () if self.scenario.policy else ("happened",)

    def _found(self, key: str) -> tuple[str, str]:
        """What is said of a call in doubt, and the result that it is said to have."""
        truth, verdict = self.world.receiver.happened(key), self.scenario.verdict
        if verdict == "truth":
            verdict = "did_not_happen" if truth is None else "happened"
        return verdict, truth or '{"effect":0}'

    # What a failure shows

    def _stuck(self) -> Iterable[str]:
        world = self.world
        open_runs = [run for run in world.witness.history.runs.values() if not run.over]
        for run in open_runs:
            calls = ", ".join(f"{call.id} {call.phase} attempt {call.attempt}" for call in run.calls.values())
            yield f"stuck: run {run.id} is {run.status} after event {run.seq}; {calls or 'no calls'}"
        for place, fields in world.ledger.outbox().items():
            if fields:
                yield f"stuck: the outbox of {place} still holds {', '.join(fields)}"
        for place, leases in world.ledger.leases().items():
            if leases:
                yield f"stuck: the ledger of {place} still has leases of {', '.join(leases)}"
        if not open_runs:
            busy = [p.name for p in world.groups.processes if not p.quiet]
            yield f"stuck: the world does not come to rest; {world.pending} things pending, not quiet: {busy}"

    def _report(self, wrong: Iterable[str]) -> str:
        lines = [" ".join(str(part) for part in line) for line in self.world.trace[-30:]]
        programs = [f"program {number}: {words(tree)}" for number, tree in trees_in(self.scenario).items()]
        return "\n".join([*wrong, *programs, "the last of what happened:", *lines])


def run_case(scenario: Scenario, faults: Iterable[Fault] = (), *, traced: bool = True) -> CaseOutcome:
    """A scenario with faults at given boundaries; the same every time."""
    return Case(scenario, Chance(Random(scenario.name)), faults).run(traced=traced)


def run_schedule(seed: int, *, less: Iterable[str] = (), traced: bool = True) -> CaseOutcome:
    """Whatever a seed makes up: several runs, tools, inputs and faults; the same every time. `less`: see `spare`."""
    return Case(*spare(*schedule(seed), less=less)).run(traced=traced)


def run_programs(seed: int, *, less: Iterable[str] = (), traced: bool = True) -> CaseOutcome:
    """Random programs under random faults, judged by plain asyncio; the same every time."""
    return Case(*spare(*pruned(*program_schedule(seed), less=less), less=less)).run(traced=traced)


def run_minds(seed: int, *, less: Iterable[str] = (), traced: bool = True) -> CaseOutcome:
    """Agents whose models do whatever a seed makes up, under random faults; the same every time."""
    return Case(*spare(*mind_schedule(seed), less=less)).run(traced=traced)
