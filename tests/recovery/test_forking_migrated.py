"""Live forks and code that changes: before, within and after their copy."""

from __future__ import annotations

import pytest

from refold import App
from refold.core.events import CallProposed, PatchTaken, RunMigrated
from refold.sdk.source import spoken
from tests.recovery.rig import Rig
from tests.recovery.test_forking import asked_for, fork
from tests.recovery.test_versions import app, begun, one, patched, three, two

NAMED = app(one, two)


def older(code: App, settled: int = 1) -> Rig:
    """A run of version `one` of which so many calls are settled, where this is deployed by now."""
    rig = begun(app(one), settled)
    rig.deploy(code)
    return rig


def asked_args(rig: Rig, run: str = "f-1") -> list[str]:
    return [step.args for step in rig.state(run).steps if isinstance(step, CallProposed)]


def ended(rig: Rig, run: str = "f-1") -> str:
    """The run goes to its end, if it does."""
    for _ in range(6):
        rig.finish(run)
        rig.run()
    return rig.state(run).status


def migrate(rig: Rig, to: str, run: str = "f-1") -> None:
    """An operator gives a run another version, as `refold run migrate` does."""
    state = rig.state(run)
    rig.later(1)
    seq, version = state.versions[-1]
    rig.operate(run, "migrate", to=to, seq=seq, **{"from": version})
    rig.run()


@pytest.mark.parametrize("again", [False, True])
def test_a_fork_has_the_version_of_its_source_and_is_migrated_apart(again: bool) -> None:
    rig = older(NAMED)
    fork(rig, 99, source="r")
    migrate(rig, "two")
    if again:
        rig.deploy(NAMED)
    for run in ("f-1", "r"):
        assert ended(rig, run) == "completed"

    assert [spoken(rig.state(run).version)[0] for run in ("f-1", "r")] == ["two", "one"]
    assert (asked_args(rig)[2], asked_args(rig, "r")[2]) == ('{"n":33}', '{"n":3}')
    assert rig.letters() == 0


def test_a_fork_of_a_run_that_was_migrated_keeps_that_or_goes_back_before_it() -> None:
    rig = older(NAMED)
    before = rig.state("r").head.seq
    migrate(rig, "two", "r")
    fork(rig, 99, source="r")
    fork(rig, before, run="f-2", source="r")
    migrate(rig, "two", "f-2")
    migrate(rig, "one", "f-2")

    assert (ended(rig), ended(rig, "f-2")) == ("completed", "completed")
    assert (asked_args(rig)[2], asked_args(rig, "f-2")[2]) == ('{"n":33}', '{"n":3}')
    assert (rig.letters(), rig.holds()) == (0, 0)


def test_a_fork_whose_version_is_not_there_stands_still_until_it_is_migrated() -> None:
    rig = older(NAMED)
    rig.deploy(newer := app(two))
    fork(rig, 99, source="r")
    rig.finish("f-1")
    rig.run()
    assert rig.hold("f-1")
    migrate(rig, "two")
    rig.deploy(newer)

    assert ended(rig) == "completed"
    assert asked_args(rig)[2] == '{"n":33}'
    assert not rig.hold("f-1")


def test_a_version_that_a_fork_does_not_agree_with_is_refused_and_it_goes_on() -> None:
    rig = older(app(one, three), 2)
    fork(rig, 99, source="r")
    migrate(rig, "three")

    assert rig.letters() == 1
    assert ended(rig) == "completed"
    assert not any(isinstance(event, RunMigrated) for event in rig.history("f-1"))


def test_who_migrates_a_fork_while_it_is_copied_is_answered_when_it_is_a_run() -> None:
    rig = older(NAMED)
    seq, version = rig.state("r").versions[-1]
    rig.operate("f-1", "migrate", to="two", seq=seq, **{"from": version})
    rig.operate("f-1", "fork", **asked_for(rig, 99, "r"))
    rig.run()

    assert ended(rig) == "completed"
    assert rig.letters() == 0
    assert asked_args(rig)[2] == '{"n":33}'


@pytest.mark.parametrize("settled", range(3))
@pytest.mark.parametrize("earlier", [False, True])
def test_a_fork_takes_the_new_way_at_a_change_that_it_has_not_passed(settled: int, earlier: bool) -> None:
    rig = begun(app(patched if earlier else one, named=False), 3)
    assert rig.state("r").over
    heads = rig.state("r").heads
    at = heads[settled].seq
    rig.deploy(code := app(patched, named=False))
    fork(rig, at, source="r")
    status = ended(rig)
    rig.deploy(code)

    assert status == "completed"
    assert asked_args(rig)[1] == ('{"n":22}' if earlier or settled < 1 else '{"n":2}')
    assert sum(isinstance(event, PatchTaken) for event in rig.history("f-1")) <= 1
    assert (rig.letters(), rig.holds()) == (0, 0)
