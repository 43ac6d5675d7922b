"""What a batch makes of rows before a store has them: whose they are, what they may contain, and how often it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from enum import IntEnum, StrEnum

import pytest
from benchmarks.views import TOGETHER, log_of, project

from refold.console.projections.batch import LARGEST_KEY, Batch
from refold.console.projections.projector import CALLS as PROPOSED
from refold.console.projections.projector import HEADS
from refold.core.errors import UsageError
from refold.core.ids import RunId
from refold.core.tables import ViewKey, ViewRow, ViewTable
from refold.engine.ports.tables import ViewChanges
from tests.contract.table_benches import CALLS, DAILY, REFUNDS, Bench, Work
from tests.projections.memory_views import MemoryViewStore

DECLARED = (CALLS, REFUNDS, DAILY)


class Tool(StrEnum):
    PAY = "pay"


class Amount(IntEnum):
    ONE = 1


class Raw(bytes):
    """Bytes of somebody's own."""


class Reads(MemoryViewStore):
    """Counts the calls that read rows."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def rows(self, table: ViewTable, keys: Collection[ViewKey]) -> dict[ViewKey, ViewRow]:
        self.calls[table.name] += 1
        return super().rows(table, keys)


def begun(store: MemoryViewStore | None = None, run: str = "r-1") -> Batch:
    batch = Batch(store or MemoryViewStore(), DECLARED)
    batch.enter(RunId(run))
    return batch


def test_values_of_subclasses_become_plain_in_every_store(bench: Bench) -> None:
    batch = begun()
    batch.put(CALLS, step=Amount.ONE, tool=Tool.PAY, raw=b"")
    batch.change(CALLS, step=Amount.ONE, raw=Raw(b"raw"))
    batch.add(DAILY, day=Tool.PAY, calls=Amount.ONE)
    bench.views.create("work", 1, batch.tables, {})
    store = bench.views.store("work", 1)

    store.commit(batch.changed())

    assert [repr(row) for row in store.scan(CALLS)] == ["('r-1', 1, 'pay', b'raw')"]
    assert [repr(row) for row in store.scan(DAILY)] == ["('pay', 0, 1, 0)"]


def test_a_row_is_not_given_to_another_run() -> None:
    batch = begun()
    batch.put(REFUNDS, id="a", cents=1)

    wrong: list[Callable[[], None]] = [
        lambda: batch.put(CALLS, run_id="r-2", step=1, tool="t", raw=b""),
        lambda: batch.put(REFUNDS, id="b", run_id="r-2", cents=1),
        lambda: batch.change(REFUNDS, id="a", run_id="r-2"),
    ]
    for write in wrong:
        with pytest.raises(UsageError, match="asked for in the name of run 'r-2'"):
            write()

    assert batch.changed().rows == {REFUNDS: {("a",): ("a", "r-1", 1)}}


def test_a_row_of_another_run_is_not_replaced() -> None:
    store = MemoryViewStore()
    store.commit(ViewChanges(DECLARED, rows={REFUNDS: {("a",): ("a", "r-2", 1)}}))

    with pytest.raises(UsageError, match="the row \\('a',\\) of refunds belongs to run 'r-2'"):
        begun(store).put(REFUNDS, id="a", cents=1)


def test_a_key_and_what_is_indexed_are_short(bench: Bench) -> None:
    batch = begun()
    widest = "\U0001f600" * LARGEST_KEY

    with pytest.raises(UsageError, match="id of a row of refunds has 601 characters, and 600 is the most"):
        batch.put(REFUNDS, id=widest + "x", cents=1)
    with pytest.raises(UsageError, match="tool of a row of calls has 601 characters"):
        batch.put(CALLS, step=1, tool=widest + "x", raw=b"")
    batch.put(REFUNDS, id=widest, cents=1)
    batch.put(CALLS, step=1, tool=widest, raw=bytes(1_000_000))

    bench.views.create("work", 1, batch.tables, {})
    bench.views.switch("work", 1, DECLARED)
    bench.views.store("work", 1).commit(batch.changed())
    assert bench.asked("refunds") == [(widest, "r-1", 1)]


def test_a_batch_reads_each_table_once() -> None:
    store, log = Reads(), log_of(TOGETHER)
    project(store, log[:350], 350, Work())
    first, store.calls = store.calls, Counter()

    project(store, log[350:], 375, Work())

    assert len(log) == 350 + 2 * 375
    assert first == {HEADS.name: 1}  # these runs are new: there are no rows of them
    assert store.calls == {HEADS.name: 2, PROPOSED.name: 2, "calls_made": 2, "runs": 1}
