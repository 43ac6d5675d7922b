"""What remains of a run, wherever writing stops and however topics are cleaned, is neither a run nor a beginning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import pytest

from refold.core.events import CallCompleted, RunCompleted
from refold.core.ids import RunId, callback_token
from refold.core.messages import DeadLetter, RunOperation, RunRequest, RunSignal, ToolClaim
from refold.core.run.log import LogFold
from refold.core.topics import (
    APPROVAL_DECIDED,
    APPROVAL_REQUESTED,
    APPROVAL_VOTED,
    DEAD_LETTER,
    RUN_COMPLETED,
    RUN_LOG,
    RUN_REQUESTED,
    RUN_SIGNALLED,
    RUN_SNAPSHOT,
    tool_claimed,
    tool_completed,
)
from refold.core.wire import codec
from refold.engine.archive.erasure import RunKey, run_keys, run_of, stages
from refold.engine.ports.log import Record
from tests.cli.chronicle import proposed, requested
from tests.core.chains import chained

RUN, OTHER = RunId("order-1"), RunId("order-10")
TOKEN = callback_token(RUN, "seed", 3).encode()
HISTORY = chained(RUN, [requested(), proposed(1), [CallCompleted(1, 1, '"ok"')], [RunCompleted('"done"')]])
ASIDE = chained(OTHER, [requested(), [RunCompleted('"other"')]])
LOG = [HISTORY[0], ASIDE[0], HISTORY[1], HISTORY[2], ASIDE[1], HISTORY[3]]
"""The records of two runs, as they lie in a partition."""


def record(topic: str, offset: int, key: bytes, value: bytes | None = b"x") -> Record:
    return Record(topic, 0, offset, key, value, list, 0)


def cleanings(log: list[tuple[bytes, bytes | None]]) -> Iterator[list[tuple[bytes, bytes | None]]]:
    """What a cleaner may leave: it knows the keys below `seen`, and has swapped the segments below `swapped` so far.

    Tombstones that it has passed are there or, later, not.
    """
    for seen in range(len(log) + 1):
        last = {key: offset for offset, (key, _) in enumerate(log[:seen])}
        for swapped, keeps in product(range(seen + 1), (True, False)):
            yield [
                (key, value)
                for offset, (key, value) in enumerate(log)
                if offset >= swapped or (last[key] == offset and (keeps or value is not None))
            ]


def folded(log: list[tuple[bytes, bytes | None]]) -> LogFold:
    fold = LogFold()
    for key, value in log:
        fold.feed(key, value)
    return fold


def remains(tombstones: list[bytes]) -> Iterator[LogFold]:
    """What readers may make of the log, wherever writing stops and whatever is cleaned, twice."""
    for count in range(len(tombstones) + 1):
        log = [*LOG, *((key, None) for key in tombstones[:count])]
        seen: set[tuple[bytes, ...]] = set()
        for once in cleanings(log):
            for twice in cleanings(once):
                keys = tuple(key for key, value in twice if value is not None)
                if keys not in seen:
                    seen.add(keys)
                    yield folded(twice)


def partial(fold: LogFold) -> bool:
    """Whether a reader would take a part of the run for a run."""
    state = fold.states.get(RUN)
    return state is not None and not state.over


def planned() -> tuple[bytes, list[bytes]]:
    """The first tombstone, which is acknowledged before the others are written; those may come in any order."""
    found = run_keys([record(RUN_LOG, offset, *each) for offset, each in enumerate(LOG)], frozenset({RUN}))
    [first], others = stages(found)
    return first.key, [each.key for each in others]


def test_what_remains_of_a_history_is_never_a_part_that_lives() -> None:
    first, others = planned()

    folds = [fold for order in permutations(others) for fold in remains([first, *order])]

    assert len(folds) > 50
    assert not any(map(partial, folds))
    assert all(fold.states[OTHER].digest() == folds[0].states[OTHER].digest() for fold in folds)


def test_erasing_from_the_end_would_leave_a_run_that_lives() -> None:
    first, others = planned()

    assert any(map(partial, remains([*others[::-1], first])))


def test_erasing_the_beginning_last_would_too() -> None:
    first, others = planned()

    assert any(map(partial, remains([*others, first])))


def test_the_log_is_erased_last_and_what_starts_a_run_first() -> None:
    topics = [
        RUN_LOG,
        RUN_SNAPSHOT,
        "tool-requested.default",
        RUN_REQUESTED,
        tool_claimed("default"),
        RUN_COMPLETED,
        DEAD_LETTER,
    ]
    order = [stage[0].topic for stage in stages(RunKey(RUN, topic, 0, b"k", True) for topic in topics)]

    assert (order[0], order[-1]) == (RUN_REQUESTED, RUN_LOG)
    assert order.index(RUN_COMPLETED) > order.index(tool_claimed("default"))


def test_what_has_a_tombstone_gets_no_other() -> None:
    assert stages([RunKey(RUN, RUN_LOG, 0, b"k", False)]) == []


CLAIM = codec.encode(ToolClaim("order-1/3", "c1", "", 1, False, "executor"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topic", "key", "run"),
    [
        (RUN_LOG, HISTORY[0][0], RUN),
        (RUN_LOG, b"order-1/x", ""),
        (RUN_REQUESTED, b"order-1", RUN),
        (RUN_SIGNALLED, b"order-1/cancel-1", RUN),
        (tool_completed("default"), b"order-1/3", RUN),
        ("tool-requested.model", b"order-10/3", OTHER),
        (APPROVAL_REQUESTED, b"order-1/3~00ff", RUN),
        (APPROVAL_VOTED, b"order-1/3/vote-1", RUN),
        (APPROVAL_DECIDED, b"order-1/3", RUN),
        (APPROVAL_DECIDED, b"again/order-1/3", RUN),
        (APPROVAL_DECIDED, b"again/3", "again"),
        (DEAD_LETTER, b"again/order-1/3", RUN),
        (DEAD_LETTER, b"order-1/cancel-1", RUN),
        (RUN_SIGNALLED, TOKEN, RUN),
        (DEAD_LETTER, TOKEN, RUN),
        (RUN_SIGNALLED, b"cb_no-token", ""),
        (RUN_SIGNALLED, b"cb_7/s-1", "cb_7"),
        (DEAD_LETTER, b"cb_7/s-1", "cb_7"),
        (RUN_SNAPSHOT, b"run/order-1/000001", RUN),
        (RUN_SNAPSHOT, b"hold/order-1", RUN),
        (RUN_SNAPSHOT, b"erased/order-1", ""),
        (RUN_SNAPSHOT, b"over/000001", ""),
        (RUN_SNAPSHOT, b"marks", ""),
    ],
)
def test_a_record_belongs_to_the_run_that_its_key_names(topic: str, key: bytes, run: str) -> None:
    assert run_of(record(topic, 0, key)) == run


def test_a_claim_belongs_to_the_run_that_it_names_itself() -> None:
    undone = codec.encode(replace(codec.decode(ToolClaim, CLAIM), claim_id="u1", prev="c1", undone=True))

    assert run_of(record(tool_claimed("default"), 0, b"some-key/c1", CLAIM)) == RUN
    assert run_of(record(tool_claimed("default"), 0, b"some-key/u1", undone)) == RUN
    assert run_of(record(tool_claimed("default"), 0, b"beat/executor", b"?")) == ""


def test_a_key_is_told_once_with_what_lies_there_now() -> None:
    records = [record(RUN_SIGNALLED, 0, b"order-1/s"), record(RUN_SIGNALLED, 1, b"order-1/s", None)]

    assert run_keys(records, frozenset({RUN})) == [RunKey(RUN, RUN_SIGNALLED, 0, b"order-1/s", False)]


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("run-requested", RunRequest(RUN, "a")),
        ("run-requested", b'{"run_id":"order-1","agent":"a","input":"a secret"}'),
        ("run-signalled", RunSignal(RUN, "s", "cancel")),
        ("run-operated", RunOperation(RUN, "s", "cancel")),
    ],
)
def test_a_dead_letter_under_a_foreign_key_belongs_to_the_run_that_its_input_names(topic: str, said: Any) -> None:
    value = said if isinstance(said, bytes) else codec.encode(said)
    letter = codec.encode(DeadLetter(topic, 0, 7, "malformed", "the key is not the id", b"else", value, "planner", 1))
    records = [record(DEAD_LETTER, 0, b"else", letter), record(DEAD_LETTER, 1, b"other", b"no letter")]

    assert run_keys(records, frozenset({RUN})) == [RunKey(RUN, DEAD_LETTER, 0, b"else", True)]
    assert run_keys(records, frozenset({RunId("order-2")})) == []
