"""The table of runs that are over: what it knows, that it forgets, and what a run weighs in it."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.errors import MalformedError
from refold.core.events import CallProposed, RetryPolicy, RunCompleted, RunRequested
from refold.core.ids import EntryId, RunId
from refold.core.messages import RunOperation
from refold.core.planning.decide import decide
from refold.core.planning.verdict import Refuse, Ruling
from refold.core.run.chain import Head
from refold.core.run.finished import ROW_BYTES, Finished
from refold.core.run.persistent import PersistentList
from refold.core.run.state import RunState, Status
from tests.core.histories import NOW, RULES, examples, random_input, random_log, start

seeds = st.integers(0, 2**32)


def over(run: str, *pools: str, status: Status = "completed", digest: str = "ab" * 16) -> RunState:
    """A run that is over."""
    request = RunRequested("ship", "[]", digest, "")
    calls = [CallProposed(n, "push", "{}", "k", pool, "keyed", 1, RetryPolicy()) for n, pool in enumerate(pools, 1)]
    head = Head(EntryId(run.encode().ljust(16)[:16]), 7)
    return RunState(RunId(run), head, status, request, at_ms=5_000, steps=PersistentList(calls), end=RunCompleted("1"))


@examples
@given(seeds)
def test_what_was_added_is_known_and_what_was_forgotten_is_not(seed: int) -> None:
    rng, table, known = random.Random(seed), Finished(), dict[str, RunState]()
    for n in range(400):
        name = f"r-{rng.randrange(300)}"
        if rng.random() < 0.25:
            assert table.forget(RunId(name)) == (known.pop(name, None) is not None)
        elif name not in known:
            known[name] = over(name, *rng.sample(["a", "b", "c"], n % 3), status="failed" if n % 2 else "cancelled")
            table.add(known[name])

    assert len(table) == len(known)
    for name in (f"r-{n}" for n in range(300)):
        found, state = table.get(RunId(name)), known.get(name)
        assert (found is not None) == (state is not None) == (RunId(name) in table)
        if found and state:
            assert (found.head, found.status, found.ended_ms) == (state.head, state.status, 5_000)
            assert found.pools == state.called_pools()


def _told(ruling: Ruling) -> Ruling | str:
    """A ruling; of a refusal its code, as what differs in a request nobody knows of a run that is over."""
    return ruling.code if isinstance(ruling, Refuse) else ruling


@examples
@given(seeds)
def test_a_finished_run_is_judged_like_the_whole_state(seed: int) -> None:
    rng, log, table = random.Random(seed), random_log(seed), Finished()
    if not log.live.over:
        log.append([RunCompleted("null")])
    table.add(log.live)

    state = table.state(log.live.run_id)

    assert state is not None
    assert (state.head, state.status, state.over) == (log.live.head, log.live.status, True)
    for asked in (start(), start(input="[7]"), *(random_input(log, rng) for _ in range(20))):
        if not (isinstance(asked, RunOperation) and asked.kind == "retry"):  # for that the history is read again
            assert _told(decide(state, asked, NOW, RULES)) == _told(decide(log.live, asked, NOW, RULES))


def test_rows_are_taken_elsewhere_whatever_numbers_pools_have_there() -> None:
    one, other = Finished(), Finished()
    rows = b"".join(one.add(over(f"r-{n}", *["x", "y"][: n % 3])) for n in range(100))
    other.add(over("first", "z"))

    other.load(rows, one.pools())

    assert len(other) == 101
    assert all(other.get(RunId(f"r-{n}")) == one.get(RunId(f"r-{n}")) for n in range(100))


@pytest.mark.parametrize("rows", [b"\1", bytes(ROW_BYTES - 3) + b"\7\0\0", bytes(ROW_BYTES - 2) + b"\0\7"])
def test_rows_that_are_none_are_refused(rows: bytes) -> None:
    with pytest.raises(MalformedError):
        Finished().load(rows, [""])


def test_a_row_that_looks_like_an_id_within_others_is_passed_over() -> None:
    table = Finished()
    state = over("a")
    row = table.add(state)
    table.load(row[8:24] + row[16:], [""])  # the digest of a run that does not exist, from the middle of another row

    table.forget(RunId("a"))

    assert RunId("a") not in table
    assert len(table) == 1


def test_a_finished_run_weighs_less_than_a_hundred_bytes() -> None:
    table = Finished()
    for n in range(20_000):
        table.add(over(f"run-{n}", "default"))

    weight = sum(sys.getsizeof(bucket) + 8 for bucket in table._buckets)

    assert weight / len(table) < 62
    assert max(len(bucket) for bucket in table._buckets) < 8_000 * ROW_BYTES


def test_many_blocks_are_one_table_whatever_their_order_and_the_latest_end_counts() -> None:
    rng, table, whole = random.Random(7), Finished(), dict[str, int]()
    blocks = []
    for _ in range(60):
        names = [f"r-{rng.randrange(9_000)}" for _ in range(300)]
        rows = []
        for name in names:
            seq = rng.randrange(1, 50)
            whole[name] = max(seq, whole.get(name, 0))
            rows.append(Finished().add(replace(over(name), head=Head(EntryId(bytes(16)), seq))))
        blocks.append(b"".join(rows))

    for n, block in enumerate(blocks):
        table.load(block, [""])
        if n % 7 == 0:
            assert RunId("r-none") not in table

    assert len(table) == len(whole)
    found = {name: row.head.seq for name in whole if (row := table.get(RunId(name)))}
    assert found == whole
    assert not any(RunId(f"s-{n}") in table for n in range(9_000))
