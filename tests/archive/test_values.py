"""The large values of a run go with it: a copy beside the archive first, then nothing of them, and of nobody else's."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from refold.client.reading.model import json_text
from refold.client.values import in_full, values_of
from refold.core.errors import BlobError, UnreachableError
from refold.core.events import CallCompleted
from refold.core.ids import RunId
from refold.engine.adapters.blobs.store import ObjectBlobs
from refold.engine.archive.blobs import ArchivedBlobs
from refold.engine.archive.service import Swept
from tests.archive.world import DAY, World
from tests.cli.chronicle import ended, proposed, requested

FIRST, LIVES = RunId("first"), RunId("lives")
TEXT, ORPHAN = '"result"', '"of a crash before the log had it"'


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Give a run that is over, with a result in the store, and one that lives."""
    world = World(tmp_path / "archive")
    store, _ = world.keep_values()
    for run in (FIRST, LIVES):
        world.chronicle.add(run, requested(given=store.put(run, '{"to":"prod"}')), proposed(1))
        world.chronicle.add(run, [CallCompleted(1, 1, store.put(run, TEXT))])
        store.put(run, ORPHAN)
    world.chronicle.add(FIRST, ended())
    return world


def stores(world: World) -> tuple[ObjectBlobs, ObjectBlobs]:
    return world.keep_values()


def sweep(world: World) -> Swept:
    world.broker.now += 31 * DAY
    return world.archivist().sweep()


def has(store: ObjectBlobs, run: RunId, text: str) -> bool:
    pointer = ObjectBlobs("memory:///", most=1 << 20).put(run, text)
    try:
        return store.get(run, pointer) == text
    except BlobError:
        return False


def test_the_values_of_an_erased_run_are_gone_from_the_store_and_lie_beside_its_archive(world: World) -> None:
    store, copies = stores(world)

    swept = sweep(world)

    assert swept.due == ["first"]
    assert not any(has(store, FIRST, text) for text in (TEXT, ORPHAN, '{"to":"prod"}'))
    assert has(copies, FIRST, TEXT)
    assert has(copies, FIRST, '{"to":"prod"}')
    assert all(has(store, LIVES, text) for text in (TEXT, ORPHAN, '{"to":"prod"}'))


@pytest.mark.parametrize("lives", range(6))
def test_a_pass_that_dies_leaves_no_value_behind_in_the_end(world: World, lives: int) -> None:
    store, copies = stores(world)
    world.lives = lives
    with suppress(UnreachableError):
        sweep(world)
    late = store.put(FIRST, '"a value that came late"')

    world.lives = None
    for _ in range(3):
        sweep(world)
        world.clean()

    assert world.marked() == set()
    with pytest.raises(BlobError):
        store.get(FIRST, late)
    assert not has(store, FIRST, TEXT)
    assert has(copies, FIRST, TEXT)


def test_a_run_that_has_lost_a_value_is_archived_all_the_same(world: World) -> None:
    store, copies = stores(world)
    store.erase(FIRST)

    assert sweep(world).due == ["first"]
    assert not has(copies, FIRST, TEXT)


def test_a_store_that_does_not_answer_keeps_the_run(world: World) -> None:
    class Down(ObjectBlobs):
        def get(self, run: RunId, pointer: str) -> str:
            raise UnreachableError("nobody is there")

    world.archived_values = ArchivedBlobs(Down("memory:///", most=1), ObjectBlobs("memory:///", most=1))

    with pytest.raises(UnreachableError):
        sweep(world)

    assert world.marked() == set()


def test_a_value_that_is_there_and_cannot_be_copied_keeps_the_run_with_the_reason(world: World, tmp_path: Path) -> None:
    store, copies = stores(world)
    world.archived_values = ArchivedBlobs(ObjectBlobs((tmp_path / "blobs").as_uri(), most=4), copies)

    swept = sweep(world)

    assert "a large value cannot be copied" in swept.left[FIRST]
    assert has(store, FIRST, TEXT)
    assert world.marked() == set()


def test_what_a_pass_would_leave_is_known_before_it_and_nothing_is_copied_for_that(
    world: World, tmp_path: Path
) -> None:
    _, copies = stores(world)
    world.broker.now += 31 * DAY
    sound = world.archivist().sweep(dry_run=True)
    world.archived_values = ArchivedBlobs(ObjectBlobs((tmp_path / "blobs").as_uri(), most=4), copies)
    short = world.archivist().sweep(dry_run=True)

    assert sound.left == {}
    assert "a large value cannot be copied" in short.left[FIRST]
    assert not has(copies, FIRST, TEXT)
    assert world.marked() == set()


def test_a_run_with_values_stays_where_no_store_is_set(world: World) -> None:
    store, _ = stores(world)
    world.archived_values = None

    swept = sweep(world)

    assert "no blob store is set" in swept.left[FIRST]
    assert has(store, FIRST, TEXT)
    assert world.marked() == set()


def test_what_is_told_in_full_has_the_values_and_what_is_lost_stays_what_it_was(world: World) -> None:
    store, _ = stores(world)
    state = world.chronicle.states["lives"]
    pointers = [store.put(LIVES, '{"a":1}'), store.put(RunId("lives.2"), '"of a child"'), "blob:" + "0" * 64 + ":9"]
    rows = [{"step": number, "result": json_text(pointer)} for number, pointer in enumerate(pointers, 1)]

    told = in_full(rows, LIVES, store)

    assert [row["result"] for row in told] == [{"a": 1}, "of a child", pointers[2]]
    assert set(values_of(state, store).values()) == {'{"to":"prod"}', TEXT}
    assert {getattr(why, "code", "") for why in values_of(state, None).values()} == {"blob_missing"}


def test_what_looks_like_a_large_value_in_the_data_of_a_tool_stays_what_it_is(world: World) -> None:
    store, _ = stores(world)
    pointer = store.put(LIVES, '{"a":1}')

    told = [in_full(json_text(json.dumps(data)), LIVES, store) for data in (pointer, {"id": pointer}, [pointer] * 9)]

    assert told == [pointer, {"id": pointer}, [pointer] * 9]
