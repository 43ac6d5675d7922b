"""Sequences and tables that grow from a shared beginning, against plain lists and dictionaries."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.run.persistent import PersistentList, PersistentMap
from tests.core.histories import examples

seeds = st.integers(0, 2**32)


@examples
@given(seeds)
def test_however_often_futures_part_each_has_its_own_items(seed: int) -> None:
    rng = random.Random(seed)
    grown: list[tuple[PersistentList[int], list[int]]] = [(PersistentList(), [])]
    for n in range(60):
        row, plain = rng.choice(grown)
        grown.append((row.append(n), [*plain, n]))

    for row, plain in grown:
        assert (row, len(row), row[:], row[-1:]) == (plain, len(plain), plain, plain[-1:])  # type: ignore[comparison-overlap]
        assert [row.place(n) for n in plain] == list(range(len(plain)))
        assert row.place(60) == len(plain)


@examples
@given(seeds)
def test_however_often_futures_part_each_has_its_own_keys(seed: int) -> None:
    rng = random.Random(seed)
    grown: list[tuple[PersistentMap[int, int], dict[int, int]]] = [(PersistentMap(), {})]
    for n in range(60):
        table, plain = rng.choice(grown)
        if key := rng.choice([key for key in range(1, 9) if key not in plain] or [0]):
            grown.append((table.add(key, n), {**plain, key: n}))

    for table, plain in grown:
        assert (dict(table), list(table), len(table)) == (plain, list(plain), len(plain))
        assert [table.get(key) for key in range(9)] == [plain.get(key) for key in range(9)]


def test_an_index_beyond_the_shared_beginning_is_not_there() -> None:
    short: PersistentList[int] = PersistentList([1])

    longer = short.append(2)

    assert longer[1] == 2
    assert list(reversed(longer)) == [2, 1]
    with pytest.raises(IndexError):
        short[1]
