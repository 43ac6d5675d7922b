"""The doors through which bytes from outside come in, and the judgement of what a door does with them."""

from __future__ import annotations

import faulthandler
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from refold.core.errors import FoldError, MalformedError
from refold.core.events import Entry
from refold.core.messages import RunRequest, RunSignal, ToolClaim, ToolRequest, ToolResult
from refold.core.planning.decide import decide
from refold.core.run import chain
from refold.core.run.fold import evolve
from refold.core.run.state import RunState
from refold.core.wire import canonical, codec
from refold.engine.planner.intake.inputs import read as read_input
from refold.engine.planner.settings import PlannerSettings
from refold.engine.ports.log import Record
from tests.core.histories import NOW, RULES, calling, doubting, started
from tests.fuzz.inputs import NASTY, Inputs

MEMORY_BYTES = 1 << 30
"""More than any input here needs by far, and far less than a length that is believed would take."""

SLOW_S = 2.0
STATES: list[RunState | None] = [None, started().live, calling().live, doubting().live]

Door = Callable[[bytes, Inputs, random.Random], Any]


def _request(value: bytes, inputs: Inputs, rng: random.Random) -> Any:
    return codec.decode_input(RunRequest, value, json_fields=("input",))


def _signal(value: bytes, inputs: Inputs, rng: random.Random) -> Any:
    return codec.decode_input(RunSignal, value, json_fields=("data",))


def _planner(value: bytes, inputs: Inputs, rng: random.Random) -> Any:
    """What the planner does with an input: reads it, and decides on it for any state that the run may be in."""
    record = Record(rng.choice(PlannerSettings(1).inputs), 0, 0, None, value, lambda: None)
    run, what = read_input(record, 1 << 20)
    return run, [decide(state, what, NOW, RULES) for state in STATES]


def _log(value: bytes, inputs: Inputs, rng: random.Random) -> Any:
    """What a reader of the run log does with a record. Nothing that lies there may stop it but an unknown schema."""
    judged = chain.read(inputs.key(value), value)
    if isinstance(judged, chain.LogRecord) and judged.entry.seq == 1:
        evolve(None, judged.entry, judged.id)
    return None if isinstance(judged, str) else judged


def _json(value: bytes, inputs: Inputs, rng: random.Random) -> Any:
    return canonical.dumps(canonical.parse(value))


def _decoding(cls: type) -> Door:
    return lambda value, inputs, rng: codec.decode(cls, value)


DOORS: dict[str, tuple[Door, tuple[type[Exception], ...]]] = {
    "request": (_request, (MalformedError,)),
    "signal": (_signal, (MalformedError,)),
    "planner": (_planner, (MalformedError,)),
    "json": (_json, (MalformedError,)),
    "run log": (_log, (FoldError,)),
    "entry": (_decoding(Entry), (MalformedError, FoldError)),
    "tool request": (_decoding(ToolRequest), (MalformedError, FoldError)),
    "tool claim": (_decoding(ToolClaim), (MalformedError, FoldError)),
    "tool result": (_decoding(ToolResult), (MalformedError, FoldError)),
}
AIMS: dict[str, type] = {
    "request": RunRequest,
    "signal": RunSignal,
    "planner": ToolResult,
    "run log": Entry,
    "entry": Entry,
    "tool request": ToolRequest,
    "tool claim": ToolClaim,
    "tool result": ToolResult,
}


def judge(door: str, value: bytes, inputs: Inputs, rng: random.Random) -> str:
    """`read`, `refused`, or what the door did that no door may do."""
    function, documented = DOORS[door]
    began = time.process_time()
    try:
        read = function(value, inputs, rng)
    except documented:
        read = None
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return f"{door} raised {error!r} for {value[:200]!r} ({len(value)} bytes)"
    taken = time.process_time() - began
    if taken > SLOW_S:
        return f"{door} took {taken:.1f} s for {value[:200]!r} ({len(value)} bytes)"
    return "refused" if read is None else "read"


def campaign(seed: int, count: int) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Sends inputs in a process of its own, with a limit of memory: how the doors answered, and what went wrong."""
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback_later(150, exit=True, file=sys.__stderr__)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, hard))
    inputs, rng, names = Inputs(seed), random.Random(seed), list(DOORS)
    answers: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []

    def send(door: str, value: bytes) -> None:
        answer = judge(door, value, inputs, rng)
        if answer in ("read", "refused"):
            answers[door, answer] += 1
        else:
            wrong.append(answer)

    for value in NASTY:
        for door in names:
            send(door, value)
    while answers.total() + len(wrong) < count and len(wrong) < 20:
        door = rng.choice(names)
        send(door, inputs.value(AIMS.get(door)))
    faulthandler.cancel_dump_traceback_later()
    return answers, wrong
