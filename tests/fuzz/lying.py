"""Histories that a planner without manners writes: entries that extend their run and lie about everything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from random import Random
from typing import Any

from benchmarks.prefill import finished

from refold.console.projections.shipped.tables import ENTRIES
from refold.core.errors import RefoldError
from refold.core.events import LAST_MS, Entry, Event, RunRequested, RunStarted
from refold.core.ids import NO_ENTRY, EntryId, RunId, entry_id, log_key
from refold.core.wire import codec
from tests.golden.samples import EVENTS, sample

NOW = 1_700_000_000_000
GOOD = RunId("good")
Pair = tuple[bytes, bytes | None]

TIMES = (2**53, -1, 0, 1, LAST_MS, LAST_MS + 1, 2**63 - 1, -(2**63), 2**32 * 1_000, NOW - 10**9, NOW, NOW, NOW, NOW)
NUMBERS = (0, -1, 1, 2, 3, 7, 2**31, 2**53, 2**63 - 1, -(2**63), 10**18, NOW)
USAGES = (
    f'{{"usage":{{"model":"a:b","input_tokens":{10**30},"output_tokens":-1}}}}',
    '{"usage":{"model":"\\ud800:\\ud800","input_tokens":7,"output_tokens":1e300}}',
    '{"usage":[],"asked":"\\ud800"}',
)
STEPS = (1, 1, 2, 3, 4, 0, -1, 2**40)
TEXTS = (
    "",
    "other",
    "\x00",
    "a\n\ndata: x",
    "\ud7ff",
    "9" * 400,
    "{",
    "[]",
    '{"a":',
    "null",
    "é" * 50,
    "x" * 5_000,
    *USAGES,
)
RUNS = (
    *("", "\x00", "a\x00b", "a\nb", "a\n\nid: 9\ndata: {}", "\r", "x" * 129, "x" * 5_000, "a." * 3_000, "é", "a b"),
    *("..", "a.0", "a.1.", ".1", "-a", "a-", "'", '"', "a.1_0", "a.12345678901", "r/1", "erased", "<b>", "\x1b[2J"),
)


def pair(entry: Entry) -> Pair:
    """The record of an entry."""
    name, value = codec.encode_entry(entry)
    return log_key(entry.run_id, entry.seq, name), value


def honest(run: str = GOOD) -> list[Pair]:
    """A run that is over, of ten calls."""
    return list(finished(RunId(run), NOW))


def event(rng: Random) -> Event:
    """An event with fields that no service writes."""
    found = sample(EVENTS[rng.choice(sorted(EVENTS))])
    changes: dict[str, Any] = {}
    for spec in fields(found):
        kind = str(spec.type).removeprefix("<class '").removesuffix("'>")
        if spec.name == "step":
            changes["step"] = rng.choice(STEPS)
        elif spec.name != "pool" and kind in ("str", "int") and rng.random() < 0.4:
            changes[spec.name] = rng.choice(TEXTS if kind == "str" else NUMBERS)
    lie: Event = replace(found, **changes)
    return lie


def lying(run: str, rng: Random) -> Iterator[Pair]:
    """A run that begins as any run and goes on as none: most entries extend it, whatever they say."""
    seq, prev = 1, NO_ENTRY
    batches: list[list[Event]] = [[RunRequested("deploy", "{}", "d" * 32, "seed"), RunStarted("1")]]
    if rng.random() < 0.2:
        batches = []
    batches += [[event(rng) for _ in range(rng.choice((1, 1, 2, 3)))] for _ in range(rng.randrange(1, 7))]
    for batch in batches:
        at = rng.choice(TIMES) if rng.random() < 0.4 else NOW + seq
        entry = Entry(RunId(run), seq, prev, at, None, rng.choice(TEXTS), rng.randbytes(16), batch)
        if rng.random() < 0.1:
            entry = replace(entry, seq=rng.choice((seq + 1, seq + 5, 1, 2**33)))
        if rng.random() < 0.1:
            entry = replace(entry, prev=rng.choice((b"", b"\1" * 16, b"x" * 400)))
        try:
            key, value = pair(entry)
        except (RefoldError, OverflowError, UnicodeEncodeError):
            continue  # no schema takes that
        assert value is not None
        yield key, value
        if 0 < at <= LAST_MS and entry.prev == prev and entry.seq == seq:
            seq, prev = entry.last_seq + 1, entry_id(value[codec.FRAME_BYTES :])


def misplaced(rng: Random) -> Iterator[Pair]:
    """Records whose key is no key, or is of another run, another number, or a body of another version."""
    for run in RUNS:
        entry = Entry(
            RunId(run), 1, NO_ENTRY, NOW, None, "p", rng.randbytes(16), [RunRequested("deploy", "{}", "", "")]
        )
        key, value = pair(entry)
        yield key, value
        yield key, None
        assert value is not None
        name = entry_id(value[codec.FRAME_BYTES :])
        yield log_key(RunId("another"), 1, name), value
        yield log_key(RunId("another"), 7, name), value
    newer = b"\0" + (60_000).to_bytes(4) + rng.randbytes(20)
    yield log_key(RunId("newer"), 1, EntryId(entry_id(newer[codec.FRAME_BYTES :]))), newer
    yield b"newer/1/" + b"0" * 32, newer
    yield b"newer/00000000010/" + b"0" * 32, None


def records(seed: int, runs: int = 30) -> list[Pair]:
    """A log of lies between the entries of a run that is over."""
    rng = Random(f"lying {seed}")
    good = honest()
    lies = [list(lying(f"lie-{number}", rng)) for number in range(runs)] + [[each] for each in misplaced(rng)]
    found: list[Pair] = []
    while good or lies:
        some = rng.choice([*lies, *([good] if good else [])])
        found.append(some.pop(0))
        lies = [each for each in lies if each]
    return found


def runs_in(rows: Any) -> set[str]:
    """The runs of rows of `entries`."""
    return {str(row[ENTRIES.places["run_id"]]) for row in rows}
