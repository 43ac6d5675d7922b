"""What is asked of the platform: inputs of every kind, and the case that they make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from refold.core.ids import home
from refold.core.topics import RUN_OPERATED, RUN_REQUESTED, RUN_SIGNALLED
from tests.simulator.settings import PARTITIONS
from tests.simulator.world.law import Decree
from tests.simulator.world.outside import Reply
from tests.simulator.world.people import Say

USER, OPERATOR = "eve", "operator"
"""Who asks for runs, if nobody else does, and says something of any; and who may."""

_Kind = Literal["run", "repeat", "conflict", "signal", "word", "poison", "erasure", "pause", "erase", "note"]


@dataclass(frozen=True, slots=True)
class ClientInput:
    """A record that a client publishes. A `word` is what a run waits for. `erase` is none: what an operator wants.

    Of a `poison` and a `conflict` one dead letter is expected, of others none.
    """

    at_ms: int
    kind: _Kind
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Upgrade:
    """An operator's order, so long after a run has begun, to go on by version `to`; `since`: as if it were of this."""

    after_ms: int
    to: str
    since: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A case before its faults. `verdict` is what the operator says of a call in doubt; `truth` asks the receiver.

    Where there are approval services there is a `policy`, `people` speak (None: as chance has it; `silent`: nothing
    beyond their script) and the operator's `decrees` change what is in force. `operator_ms` is how long the operator
    thinks about a doubt. `replies` are said with every token of a callback (None: as chance has it).
    At `rollout_ms` a deploy begins that goes from planner to planner (below 0: none). `upgrades` are said of each run
    of the agent that has versions (None: as chance has it).
    So often at most (`retries`) an operator has a run go on that has failed, and so many runs are forked (`forks`).
    `programs`: its runs are random programs, so that somebody says what they wait for, mostly, and plain asyncio judges
    them.
    """

    name: str
    inputs: tuple[ClientInput, ...]
    scripts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    verdict: str = "truth"
    changes: Mapping[str, Any] = field(default_factory=dict)
    people: tuple[Say, ...] | None = ()
    policy: str = ""
    decrees: tuple[Decree, ...] = ()
    silent: bool = False
    operator_ms: int = 700
    replies: tuple[Reply, ...] | None = ()
    retries: int = 0
    forks: int = 0
    programs: bool = False
    upgrades: tuple[Upgrade, ...] | None = ()
    rollout_ms: int = -1


def start_run(
    run: str,
    agent: str,
    given: Any = None,
    *,
    at_ms: int = 0,
    kind: _Kind = "run",
    stray: bool = False,
    partitions: int = PARTITIONS,
    **more: Any,
) -> ClientInput:
    """A request to start a run, at its home or in another partition."""
    value = json.dumps({"run_id": run, "agent": agent, "input": given, "requester": USER, **more}).encode()
    place = home(run, partitions) + stray
    return ClientInput(at_ms, kind, RUN_REQUESTED, place % partitions, run.encode(), value)


def signal(
    run: str, name: str, kind: str, data: Any = None, *, at_ms: int = 0, partitions: int = PARTITIONS
) -> ClientInput:
    """What a user says of a run."""
    value = json.dumps({"run_id": run, "signal_id": name, "kind": kind, "data": data, "actor": USER}).encode()
    return ClientInput(at_ms, "signal", RUN_SIGNALLED, home(run, partitions), f"{run}/{name}".encode(), value)


def word(
    run: str, signal_id: str, data: Any = None, *, at_ms: int = 0, name: str = "go", partitions: int = PARTITIONS
) -> ClientInput:
    """What a user tells a run that waits for it, or will."""
    said = {"run_id": run, "signal_id": signal_id, "kind": "signal", "name": name, "data": data, "actor": USER}
    key = f"{run}/{signal_id}".encode()
    return ClientInput(at_ms, "word", RUN_SIGNALLED, home(run, partitions), key, json.dumps(said).encode())


def operation(
    run: str, name: str, kind: str, data: Any = None, *, at_ms: int = 0, partitions: int = PARTITIONS
) -> ClientInput:
    """What the operator says of a run."""
    value = json.dumps({"run_id": run, "signal_id": name, "kind": kind, "data": data, "actor": OPERATOR}).encode()
    return ClientInput(at_ms, "signal", RUN_OPERATED, home(run, partitions), f"{run}/{name}".encode(), value)


def pause(run: str, name: str, *, at_ms: int = 0, partitions: int = PARTITIONS) -> ClientInput:
    """An operator wants a run to stand still."""
    said = operation(run, name, "pause", {"reason": "look first"}, at_ms=at_ms, partitions=partitions)
    return replace(said, kind="pause")


def note(run: str, name: str, *, at_ms: int = 0, partitions: int = PARTITIONS) -> ClientInput:
    """An operator adds a note to the history of a run."""
    said = operation(run, name, "annotate", {"note": f"note {name}"}, at_ms=at_ms, partitions=partitions)
    return replace(said, kind="note")


def backlog(size: int) -> Scenario:
    """So many requests before anybody is there, nearly all of them said again and again, and behind them a cancel."""
    first = [start_run(f"r-{number}", "one", {"tool": "push"}) for number in range(8)]
    again = [replace(start, kind="repeat") for start in first]
    mass = [again[number % len(again)] for number in range(size)]
    late = [start_run("late", "one", {"tool": "push"}), signal("late", "c", "cancel")]
    return Scenario(f"backlog {size:,}", (*first, *mass, *late), changes={"backlog": 500, "active": 4})


def poison(topic: str, value: bytes, *, at_ms: int = 0) -> ClientInput:
    """Bytes that mean nothing."""
    return ClientInput(at_ms, "poison", topic, 0, b"poison", value)


def erasure(topic: str, *, at_ms: int = 0) -> ClientInput:
    """A tombstone: nothing to answer."""
    return ClientInput(at_ms, "erasure", topic, 0, b"r-1", None)


def erase(run: str, *, at_ms: int = 0) -> ClientInput:
    """An operator wants a run erased, and all that it has started: `refold run erase`."""
    return ClientInput(at_ms, "erase", "", 0, run.encode(), None)
