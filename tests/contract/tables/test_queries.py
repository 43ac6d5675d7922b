"""A page of rows is the same from every store."""

from __future__ import annotations

import pytest

from refold.core.tables import ViewKey, ViewRow
from refold.engine.ports.tables import Query, RunsWith, ViewChanges, ViewReader, Where
from refold.sdk.projection import key, table
from tests.contract.table_benches import Bench

RUNS = table("runs", key(run_id=str), indexes=(("at_ms",),), agent=str, says=str, at_ms=int)
LABELS = table("labels", key(run_id=str, name=str), value=str)
ROWS = [(f"r-{n:02}", "shop" if n % 3 else "Desk", f"step {n} of 100%_\\", 1_000 + n // 2) for n in range(20)]


@pytest.fixture
def store(bench: Bench) -> ViewReader:
    bench.views.create("some", 1, (RUNS, LABELS), {})
    made = bench.views.store("some", 1)
    labels: dict[ViewKey, ViewRow | None] = {
        (row[0], "team"): (row[0], "team", "pay" if number % 2 else "ship") for number, row in enumerate(ROWS)
    }
    made.commit(ViewChanges((RUNS, LABELS), rows={RUNS: {row[:1]: row for row in ROWS}, LABELS: labels}))
    return made


def ids(store: ViewReader, query: Query) -> list[str]:
    return [str(row[0]) for row in store.query(query)]


@pytest.mark.parametrize("descending", [False, True])
def test_pages_follow_each_other_without_a_gap(store: ViewReader, descending: bool) -> None:
    found: list[str] = []
    after: tuple[str | int | bytes, ...] = ()
    while rows := store.query(Query(RUNS, order="at_ms", descending=descending, after=after, limit=3)):
        found += [str(row[0]) for row in rows]
        after = Query(RUNS, order="at_ms").place(rows[-1])

    assert found == sorted((row[0] for row in ROWS), reverse=descending)


def test_conditions_hold_together(store: ViewReader) -> None:
    teams = RunsWith(LABELS, (Where("name", "=", "team"), Where("value", "=", "pay")))

    assert ids(store, Query(RUNS, (Where("agent", "=", "Desk"),), (teams,))) == ["r-03", "r-09", "r-15"]
    assert store.count(Query(RUNS, (Where("agent", "=", "Desk"),), (teams,), after=("r-04",), limit=1)) == 3
    others = teams._replace(absent=True)
    assert not {"r-03", "r-09", "r-15"} & {*ids(store, Query(RUNS, (), (others,)))}
    assert store.count(Query(RUNS, (Where("agent", "=", "Desk"),), (others,))) == 4
    assert store.count(Query(RUNS)) == 20
    assert store.counts(Query(RUNS), ("agent",)) == {("Desk",): 7, ("shop",): 13}
    assert store.counts(Query(RUNS, (Where("at_ms", "<", 1_002),), (teams,)), ("agent", "at_ms")) == {
        ("shop", 1_000): 1,
        ("Desk", 1_001): 1,
    }
    assert store.counts(Query(RUNS, (Where("agent", "=", "none"),)), ("agent",)) == {}
    assert ids(store, Query(RUNS, (Where("at_ms", ">=", 1_008), Where("at_ms", "<", 1_009)))) == ["r-16", "r-17"]


def test_a_text_is_found_whatever_it_contains(store: ViewReader) -> None:
    assert ids(store, Query(RUNS, (Where("says", "contains", "STEP 7 OF"),))) == ["r-07"]
    both = (
        ids(store, Query(RUNS, (Where("agent", "=", "Desk"),))),
        ids(store, Query(RUNS, (Where("says agent", "=", "Desk"),))),
    )
    assert both[0] == both[1] != []
    assert len(ids(store, Query(RUNS, (Where("says", "contains", "100%_\\"),)))) == 20
    assert ids(store, Query(RUNS, (Where("says", "contains", "1%"),))) == []
    assert ids(store, Query(RUNS, (Where("agent", "=", "x' or '1'='1"),))) == []
