"""Short histories that are made by hand, and what becomes of their records on the way into a log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from refold.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallCompleted,
    CallDispatched,
    CallDoubted,
    CallFailed,
    CallProposed,
    Cause,
    Entry,
    Event,
    Failure,
    Requirement,
    RetryPolicy,
    RunCompleted,
    RunFailed,
    RunRequested,
    RunRetried,
    RunStarted,
    StatusSet,
)
from refold.core.ids import NO_ENTRY, RunId, log_key
from refold.core.messages import RunErased
from refold.core.run.erased import erased_key
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.ports.log import Record
from tests.projections.viewed import Log

NOW = 1_700_000_000_000
USAGE = '{"usage":{"model":"acme:small","input_tokens":70,"output_tokens":30}}'

Pair = tuple[bytes, bytes | None]


def entries(run: str, *batches: Sequence[Event], salt: str = "") -> list[Pair]:
    """An entry for each batch, chained, as keys and values."""
    found: list[Pair] = []
    seq, prev = 1, NO_ENTRY
    for number, batch in enumerate(batches):
        nonce = f"{salt}{number}".encode()
        entry = Entry(RunId(run), seq, prev, NOW + 40 * seq, Cause("run-requested", 0, seq), "p", nonce, list(batch))
        prev, value = codec.encode_entry(entry)
        found.append((log_key(RunId(run), seq, prev), value))
        seq += len(batch)
    return found


def call(step: int, args: str = "{}") -> list[Event]:
    """A call that goes out."""
    made = CallProposed(step, "pay", args, f"k{step}", "default", "once", 1_000, RetryPolicy())
    return [made, CallDispatched(step, 1, NOW)]


def begun(**labels: str) -> list[Event]:
    """The beginning of a run."""
    return [RunRequested("shop", "{}", "d", "s", "ann", labels=labels, sessions=["s-1"]), RunStarted("1", "app")]


def asked(step: int) -> ApprovalRequested:
    """A question about a call."""
    return ApprovalRequested(step, 1, 1, "p", "big", Requirement(["ada"]), "dev", "1", "s", f"{step:032x}")


def long(run: str, calls: int = 4) -> list[Pair]:
    """A run with calls of every outcome, which fails, is retried, and ends."""
    outcomes: list[Sequence[Event]] = [
        *([CallCompleted(step, 1, USAGE), *call(step + 1)] for step in range(1, calls)),
        [CallFailed(calls, 1, Failure("declined", f"no money for {run}"))],
        [StatusSet(f"{run} asks"), call(calls + 1, '{"n":1}')[0], asked(calls + 1)],
        [ApprovalDecided(calls + 1, 1, "approve", actors=["ada"]), CallDispatched(calls + 1, 1, NOW)],
        [CallDoubted(calls + 1, 1, Failure("lost", "?")), RunFailed(Failure("limit", "too long"))],
        [RunRetried("op", "once more"), *call(calls + 2, '{"n":1}')],
        [CallCompleted(calls + 2, 1, "1"), RunCompleted("1")],
    ]
    return entries(run, [*begun(customer=run), *call(1)], *outcomes)


def log_of(pairs: Iterable[Pair], topic: str = RUN_LOG) -> Log:
    """Keys and values as records of a partition, in this order."""
    return Log(Record(topic, 0, offset, key, value, list, NOW) for offset, (key, value) in enumerate(pairs))


def mixed(runs: Sequence[Sequence[Pair]], seed: int) -> list[Pair]:
    """The records of runs, one among the other."""
    rng, ahead, found = Random(seed), [list(run) for run in runs], list[Pair]()
    while any(ahead):
        found.append(rng.choice([run for run in ahead if run]).pop(0))
    return found


def marker(run: str, offset: int, *, gone: bool = False) -> Record:
    """What an archivist says of a run that it is erasing, or that nothing of it is left."""
    value = None if gone else codec.encode(RunErased(RunId(run), "beef", "d", "a", [], NOW))
    return Record(RUN_SNAPSHOT, 0, offset, erased_key(RunId(run)), value, list, NOW)
