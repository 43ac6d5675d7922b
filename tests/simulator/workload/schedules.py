"""Scenarios that a seed makes up: several runs, tools that do anything, inputs of every kind, faults in between."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from refold.core.topics import RUN_REQUESTED, RUN_SIGNALLED
from tests.simulator.app import DANGEROUS
from tests.simulator.revised import REVISED
from tests.simulator.settings import ANSWERS, ORDERS, PARTITIONS
from tests.simulator.workload.inputs import (
    USER,
    ClientInput,
    Scenario,
    erase,
    note,
    operation,
    pause,
    poison,
    signal,
    start_run,
    word,
)
from tests.simulator.world.broker import AHEAD_MS
from tests.simulator.world.faults import Chance
from tests.simulator.world.law import HEADS, LEADS, Decree
from tests.simulator.world.tools import ANY

UNSAFE_MS = 6_000
"""How long chance may do harm: twice the longest stay of a zombie."""

REVISING = 0.08
"""The share of schedules in which an agent has versions."""

FORKED = 0.15
"""The share of schedules in which an operator forks runs."""

VIEWED = 0.2
"""The share of schedules beside which projectors keep views."""

UNEVEN = 0.05
"""The share of those whose members are set up differently."""

_POLICIES = ("ask", "ask", "ask-two", "ask-all", "brief", "escalating", "escalating-early", "rejecting")
_LATER = ("recheck-ask", "recheck-two", "recheck-allow", "recheck-deny", "ask-anybody")
_TOOLS = ("look", "push", "pushed_briefly", "book", "pay", "pay", "book")
_AGENTS = (
    *("one", "one", "one", "three", "fan", "twins", "sleeper", "failing", "handling", "both", "thrice"),
    *("race", "hurried", "group", "waiter", "pair", "late", "late", "caller", "caller"),
)
_WAITING = ("waiter", "pair", "late")
_GIVEN = ("one", "handling", "both", "thrice", "race", "hurried", "group")
_PARENTS = ("parent", "grandparent", "siblings", "siblings", "impatient", "leaving", "leaving")
_RUNS = ("r-1", "r-2", "r-3", "r-4")
_MANY = tuple(f"r-{number}" for number in range(1, 13))


def schedule(seed: int) -> tuple[Scenario, Chance]:
    """The scenario of a seed, and the chance that it runs under."""
    rng = Random(seed)
    inputs: list[ClientInput] = []
    large = rng.random() < 0.04
    names, partitions = (_MANY, 4) if large else (_RUNS, PARTITIONS)
    for run in rng.sample(names, rng.randint(6, 12) if large else rng.choice((1, 1, 1, 2, 2, 3))):
        inputs += _run(rng, run, partitions)
    inputs += _family(Random(f"{seed}/family"), partitions)
    inputs += _pauses(Random(f"{seed}/pauses"), inputs, partitions)
    inputs += _notes(Random(f"{seed}/notes"), inputs, partitions)
    if (own := Random(f"{seed}/large")).random() < 0.15:
        given = {"tool": own.choice(_TOOLS)}
        inputs.append(start_run("l-1", "reader", given, at_ms=own.randrange(200), partitions=partitions))
    if rng.random() < 0.15:
        topic = rng.choice((RUN_REQUESTED, RUN_SIGNALLED, ANSWERS, ORDERS))
        inputs.append(poison(topic, rng.choice((b"\xff", b"{}", b"[1]", b"\0\0\0\0\x63x")), at_ms=rng.randrange(300)))
    sizes = {"planners": rng.choice((1, 1, 2)), "executors": rng.choice((1, 1, 2))}
    changes = {**sizes, "partitions": partitions, "sharing": rng.random() < 0.5}
    if rng.random() < 0.1:
        changes |= {"backlog": rng.choice((2, 4)), "slots": 12, "active": rng.choice((1, 2, 8))}
    own, rate, left = Random(rng.random()), rng.choice((0.01, 0.03, 0.08)), rng.randint(1, 7)
    chance = Chance(own, wild=True, rate=rate, left=left, until_ms=UNSAFE_MS)
    verdict = "truth" if rng.random() < 0.8 else rng.choice(("happened", "did_not_happen", "give_up"))
    retries = Random(f"retries of {seed}").choice((0, 1, 2))
    scenario = Scenario(f"seed {seed}", tuple(inputs), {ANY: ()}, verdict, changes, replies=None, retries=retries)
    if (own := Random(f"{seed}/forks")).random() < FORKED:
        scenario = replace(scenario, forks=own.choice((1, 1, 2, 3)))
    scenario = asking(rng, scenario) if rng.random() < 0.5 else scenario
    if Random(f"held of {seed}").random() < 0.5:
        scenario = replace(scenario, inputs=tuple(map(_holding, scenario.inputs)))
    if Random(f"{seed}/uneven").random() < UNEVEN:
        scenario = replace(scenario, changes={**scenario.changes, "planners": 2, "executors": 2, "uneven": True})
    erasing = _erasing(Random(f"{seed}/erasure"), scenario)
    revised = _revised(Random(f"{seed}/newer"), erasing)
    if is_viewed(seed):
        revised = replace(revised, changes={**revised.changes, "projectors": 1})
    return revised, chance


def is_viewed(seed: int) -> bool:
    """True if projectors keep views beside the schedule of a seed."""
    return Random(f"{seed}/views").random() < VIEWED


def _erasing(rng: Random, plain: Scenario) -> Scenario:
    """Sometimes the same with an archivist, which keeps runs for a short while, or erases on demand alone."""
    if rng.random() >= 0.1:
        return plain
    asked = sorted({given.key.decode() for given in plain.inputs if given.kind == "run" and given.key})
    keep_ms = rng.choice((0, AHEAD_MS, AHEAD_MS + 500, AHEAD_MS + 3_000))
    wanted = [run for run in asked if rng.random() < (0.3 if keep_ms else 0.8)] + ["never"] * (rng.random() < 0.1)
    demands = tuple(erase(run, at_ms=rng.choice((100, 1_000, 3_000, 6_000)) + rng.randrange(1_000)) for run in wanted)
    changes = {**plain.changes, "archivists": rng.choice((1, 1, 2)), "keep_ms": keep_ms, "rots": rng.random() < 0.3}
    late = tuple(
        replace(given, kind="repeat", at_ms=rng.randrange(4_000, 12_000))
        for given in plain.inputs
        if given.kind == "run" and rng.random() < 0.3
    )
    return replace(plain, inputs=(*plain.inputs, *demands, *late), changes=changes)


def _revised(rng: Random, plain: Scenario) -> Scenario:
    """Sometimes the same with runs that are handed to other versions of their agent."""
    if rng.random() >= REVISING:
        return plain
    partitions = plain.changes["partitions"]
    runs = [
        start_run(f"v-{number}", REVISED, at_ms=rng.randrange(1_500), partitions=partitions)
        for number in range(1, rng.choice((2, 2, 3)))
    ]
    runs += _pauses(rng, runs, partitions)
    rollout_ms = rng.randrange(2_000) if rng.random() < 0.5 else -1
    return replace(plain, inputs=(*plain.inputs, *runs), upgrades=None, rollout_ms=rollout_ms)


def spare(scenario: Scenario, chance: Chance, *, less: Iterable[str]) -> tuple[Scenario, Chance]:
    """The same without some parts: `input-N` and `decree-N` (counted from 1) do not come, `fault-N` is not had, and of
    `planners`, `executors` or `approvals` there is one, and no `archivist` or `projector`."""
    parts = set(less)
    inputs = tuple(each for number, each in enumerate(scenario.inputs, 1) if f"input-{number}" not in parts)
    decrees = tuple(each for number, each in enumerate(scenario.decrees, 1) if f"decree-{number}" not in parts)
    none = {role: {f"{role}s": 0} for role in ("archivist", "projector")}
    fewer = none | {name: {name: 1} for name in scenario.changes}
    changes = dict(scenario.changes)
    for part in parts & fewer.keys():
        changes |= fewer[part]
    chance.spared = frozenset(int(part[6:]) for part in parts if part.startswith("fault-"))
    return replace(scenario, inputs=inputs, decrees=decrees, changes=changes), chance


def parts_of(scenario: Scenario, faults: int) -> list[str]:
    """What a schedule in which so many faults struck may be spared, what is largest first."""
    sizes = [name for name in ("planners", "executors", "approvals") if scenario.changes.get(name, 1) > 1]
    sizes += [role for role in ("archivist", "projector") if scenario.changes.get(f"{role}s")]
    counted = (("input", len(scenario.inputs)), ("decree", len(scenario.decrees)), ("fault", faults))
    return [f"{what}-{number}" for what, count in counted for number in range(1, count + 1)] + sizes


def asking(rng: Random, plain: Scenario) -> Scenario:
    """The same with people: in place of some tools those that never run without them, and laws that change."""
    inputs = _said_again([_dangerous(rng, given) for given in plain.inputs])
    decrees: list[Decree] = []
    if rng.random() < 0.25:
        decrees.append(Decree(rng.randrange(1_500), "policy", rng.choice(_LATER)))
    if rng.random() < 0.15:
        decrees.append(Decree(rng.randrange(1_500), rng.choice(("revoke", "rotate"))))
    if rng.random() < 0.15:
        roles = {"roles": {"lead": list(LEADS[1:]), "head": list(HEADS)}, "revoked": rng.choice(([], ["ada"]))}
        decrees.append(Decree(rng.randrange(1_500), "roles", roles))
    changes = {**plain.changes, "approvals": rng.choice((1, 1, 2))}
    policy = rng.choice((*_POLICIES, "allow", "deny", "allow", "deny"))
    return replace(plain, inputs=inputs, changes=changes, people=None, policy=policy, decrees=tuple(decrees))


def _said_again(inputs: list[ClientInput]) -> tuple[ClientInput, ...]:
    """The same, where who repeats a request says all of it again."""
    first = {given.key: given.value for given in inputs if given.kind == "run"}
    return tuple(replace(each, value=first[each.key]) if each.kind == "repeat" else each for each in inputs)


def _dangerous(rng: Random, given: ClientInput) -> ClientInput:
    if given.kind not in ("run", "repeat", "conflict") or given.value is None:
        return given
    request = json.loads(given.value) | {"requester": rng.choice((USER, "ada"))}
    request["labels"] = {**request.get("labels", {}), "session": "s-1"}
    if isinstance(request["input"], dict) and f"wipe_{request['input'].get('tool')}" in DANGEROUS:
        request["input"]["tool"] = f"wipe_{request['input']['tool']}"
    return replace(given, value=json.dumps(request).encode())


def _holding(given: ClientInput) -> ClientInput:
    """The same with tools that wait for an operator when their attempts are used up."""
    if given.kind not in ("run", "repeat", "conflict") or given.value is None:
        return given
    request = json.loads(given.value)
    if isinstance(request["input"], dict) and request["input"]["tool"] in ("push", "pay"):
        request["input"]["tool"] += "_or_hold"
    return replace(given, value=json.dumps(request).encode())


def _words(rng: Random, run: str, partitions: int) -> list[ClientInput]:
    """What a run is told: before it begins, while it waits and when it does not any more, some of it twice."""
    said: list[ClientInput] = []
    for number in range(rng.choice((0, 1, 2, 2, 3, 4))):
        data, at_ms = (
            rng.choice((None, {"n": 1}, {"n": 2}, {"n": 2})),
            rng.choice((0, 100, 250, 400, 1_500, 2_600, 4_000)),
        )
        told = word(run, f"s-{number}", data, at_ms=at_ms + rng.randrange(100), partitions=partitions)
        said += [told, replace(told, at_ms=told.at_ms + rng.randrange(500))] if rng.random() < 0.3 else [told]
    return said


def _family(rng: Random, partitions: int) -> list[ClientInput]:
    """Sometimes a run that starts others, drawn apart: what a seed makes up besides stays what it was."""
    if rng.random() < 0.6:
        return []
    at_ms, given = rng.randrange(200), {"tool": rng.choice(_TOOLS)}
    found = [start_run("f-1", rng.choice(_PARENTS), given, at_ms=at_ms, partitions=partitions)]
    if rng.random() < 0.4:
        at_ms = rng.randrange(1_000)
        found.append(operation("f-1", "c", "cancel", {"reason": "chance"}, at_ms=at_ms, partitions=partitions))
    return found


def _pauses(rng: Random, inputs: list[ClientInput], partitions: int) -> list[ClientInput]:
    """Sometimes operators pause runs, drawn apart as well, and some of them twice."""
    runs = sorted({given.key.decode() for given in inputs if given.kind == "run" and given.key})
    return [
        pause(run, f"p-{number}", at_ms=rng.randrange(2_500), partitions=partitions)
        for run in runs
        for number in range(rng.choice((0, 0, 0, 0, 1, 1, 2)))
    ]


def _notes(rng: Random, inputs: list[ClientInput], partitions: int) -> list[ClientInput]:
    """Sometimes operators add notes to runs, drawn apart as well, and some of them twice under one id."""
    found = []
    for run in sorted({given.key.decode() for given in inputs if given.kind == "run" and given.key}):
        for number in range(rng.choice((0, 0, 0, 1, 2))):
            once = note(run, f"n-{number}", at_ms=rng.randrange(2_500), partitions=partitions)
            found += [once] + [replace(once, at_ms=once.at_ms + rng.randrange(400))] * (rng.random() < 0.5)
    return found


_OTHERWISE: tuple[Mapping[str, Any], ...] = (
    {},
    {"labels": {"tenant": "b"}},
    {"deadline_ms": 1 << 45},
    {"sessions": ["s"]},
)
"""What a request may ask for besides its agent and input; the first is for one with other input."""


def _run(rng: Random, run: str, partitions: int) -> list[ClientInput]:
    agent, at_ms = rng.choice(_AGENTS), rng.randrange(200)
    given = {"tool": rng.choice(_TOOLS)} if agent in _GIVEN else None
    found = [start_run(run, agent, given, at_ms=at_ms, stray=rng.random() < 0.1, partitions=partitions)]
    if rng.random() < 0.2:
        at_ms, stray = rng.randrange(400), rng.random() < 0.3
        found.append(start_run(run, agent, given, at_ms=at_ms, kind="repeat", stray=stray, partitions=partitions))
    if rng.random() < 0.05:
        other, at_ms = json.dumps(given), rng.randrange(400)
        # Other input, or the same with something else that it asks for.
        more = _OTHERWISE[at_ms % 4]
        asked = given if more else other
        found.append(start_run(run, agent, asked, at_ms=at_ms, kind="conflict", partitions=partitions, **more))
    if agent in _WAITING:
        found += _words(rng, run, partitions)
    if rng.random() < 0.15:
        says = rng.choice((signal, operation))
        found.append(says(run, "c", "cancel", {"reason": "chance"}, at_ms=rng.randrange(1_500), partitions=partitions))
    return found
