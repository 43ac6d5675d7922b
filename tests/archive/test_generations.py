"""Generations of a run leave one by one while the run lives; what people have sent it stays for the last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from refold.client.verify import verify_log
from refold.core import topics
from refold.core.errors import ConflictError
from refold.core.events import Continued, RunContinued, RunRequested
from refold.core.ids import RunId
from tests.archive.world import DAY, World
from tests.cli.chronicle import completed, ended, proposed, requested
from tests.roots import TRUST

INPUTS = {topics.RUN_REQUESTED, topics.RUN_SIGNALLED, topics.RUN_OPERATED, *topics.DEAD_LETTERS}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two generations of `c`, of which the second lives."""
    world = World(tmp_path / "archive")
    world.run("c", over=False)
    world.chronicle.add(RunId("c"), [RunContinued("{}")])
    _next(world, world.chronicle.states["c"].head.id)
    return world


def _next(world: World, head: bytes) -> None:
    events = requested()
    request = events[0]
    assert isinstance(request, RunRequested)
    linked = replace(request, continues=Continued(head, b""))
    world.chronicle.add(RunId("c+2"), [linked, *events[1:]], proposed(1))


def test_an_old_generation_leaves_and_the_inputs_of_the_run_stay(world: World) -> None:
    world.broker.now += 40 * DAY

    swept = world.archivist().sweep()

    assert swept.due == ["c"]
    assert {record.topic for record in world.values("c")} <= INPUTS
    assert any(record.topic == topics.RUN_SIGNALLED for record in world.values("c"))
    assert world.values("c+2")
    world.clean()
    assert world.archivist().sweep().gone == ["c"]

    world.chronicle.add(RunId("c+2"), completed(1), ended())
    world.broker.now += 40 * DAY
    world.archivist().sweep()

    assert world.values("c") == world.values("c+2") == []


def test_a_run_that_lives_is_not_erased_by_its_name(world: World) -> None:
    with pytest.raises(ConflictError, match=r"c\+2 is not over"):
        world.archivist().erase("c")

    world.chronicle.add(RunId("c+2"), completed(1), ended())
    world.archivist().erase("c")

    assert world.values("c") == world.values("c+2") == []


def test_the_chain_is_verified_across_generations(tmp_path: Path, world: World) -> None:
    verified = verify_log(world.chronicle.reader, TRUST, now_ms=world.broker.now, settle_s=0)
    kinds = {violation.kind for violation in verified.violations if violation.run_id == "c+2"}
    assert "generation" not in kinds

    other = World(tmp_path / "other")
    other.run("c", over=False)
    other.chronicle.add(RunId("c"), [RunContinued("{}")])
    _next(other, b"another")
    verified = verify_log(other.chronicle.reader, TRUST, now_ms=other.broker.now, settle_s=0)
    kinds = {violation.kind for violation in verified.violations if violation.run_id == "c+2"}
    assert "generation" in kinds
