"""What is said of versions and of code that is tried on recorded runs, over topics that planners have written."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from refold import App
from refold.client.operations.runs import Runs
from refold.client.platform import Platform
from refold.client.reading.run import versions_in_use
from refold.core.messages import Member, MemberAgent
from refold.core.topics import MEMBER
from refold.core.wire import codec
from refold.engine.adapters.memory.log import MemoryLogReader
from refold.engine.ports.log import Outgoing
from refold.lab.forks.report import check_replay
from refold.sdk.source import spoken
from tests.cli.terminal import refold
from tests.recovery.rig import Rig
from tests.recovery.test_versions import app, begun, finish, one, patched, step, three, two

MODULE = "tests.cli.test_versions"
GOOD, BAD, BOTH, OLD = app(two), app(three), app(one, two), app(two)
vars(OLD.agents["ship"])["version"] = "two+py2.7"


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Give a platform with a run that is over, and one that waits in its second call; commands read its topics."""
    rig = begun(app(one), 3)
    rig.start("live", "ship")
    rig.run()
    rig.finish("live")
    rig.run()
    monkeypatch.setattr(Platform, "runs", Runs(MemoryLogReader(rig.broker)))
    return rig


class Hand:
    """Writes what operators say, and lets the planner answer it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    def send(self, message: Any) -> tuple[int, int]:
        data, offset = json.loads(message.data), self.rig.broker.log("run-operated", 0).end
        self.rig.operate(message.run_id, message.kind, **data)
        self.rig.run()  # what is refused has a tombstone behind it by now
        return 0, offset


@pytest.fixture
def hand(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Hand:
    """Give the hand with which commands write."""
    hand = Hand(rig)
    monkeypatch.setattr(Platform, "publisher", hand)
    return hand


def test_a_run_is_migrated_and_a_second_time_it_is_known(rig: Rig, hand: Hand) -> None:
    rig.deploy(app(one, two))

    first = refold("run", "migrate", "live", "--to", "two", "--json")
    again = refold("run", "migrate", "live", "--to", "two", "--json")

    assert json.loads(first.stdout) == [
        {"run_id": "live", "from": app(one).agents["ship"].version, "to": "two", "outcome": "accepted"}
    ]
    assert json.loads(again.stdout)[0]["outcome"] == "known"
    assert spoken(rig.state("live").version)[0] == "two"


def test_all_runs_of_a_version_are_migrated_and_those_that_cannot_be_are_named(rig: Rig, hand: Hand) -> None:
    rig.start("fresh", "ship")  # in its first call, so that it goes with any of them
    rig.run()
    rig.deploy(app(one, two, three))
    words = ("run", "migrate", "--agent", "ship", "--from", "one", "--to", "three", "--json")

    tried = refold(*words, "--dry-run")
    done = refold(*words)

    assert [row["outcome"] for row in json.loads(tried.stdout)] == ["would", "would"]
    outcomes = {row["run_id"]: row["outcome"] for row in json.loads(done.stdout)}
    assert outcomes["fresh"] == "accepted"
    assert "step 2 is call step" in outcomes["live"]
    assert done.exit_code == 1
    assert [spoken(rig.state(run).version)[0] for run in ("fresh", "live")] == ["three", "one"]


def runs(rig: Rig) -> Runs:
    return Runs(MemoryLogReader(rig.broker))


def test_versions_in_use_are_those_of_runs_that_live(rig: Rig) -> None:
    rig.deploy(app(two))
    rig.start("new", "ship")
    rig.run()

    rows = {
        spoken(row.version)[0]: (row.agent, row.live, row.runs, row.stalled) for row in versions_in_use(runs(rig).all())
    }

    assert rows == {"one": ("ship", 1, ["live"], {}), "two": ("ship", 1, ["new"], {})}


def test_a_version_in_use_tells_which_runs_stand_still_and_what_they_need(rig: Rig) -> None:
    rig.deploy(app(three))
    rig.finish("live")
    rig.run()

    [row] = versions_in_use(runs(rig).all())

    assert row.stalled["live"].startswith("unknown_version, needs one")
    shown = refold("worker", "list", "--versions")
    assert "unknown_version, needs one" in shown.output
    assert "planner-2" not in shown.output
    other = Member("planner-2", "planner", "a", 5, agents=[MemberAgent("ship", "one", {})])
    rig.broker.write(Outgoing(MEMBER, 0, b"planner-2", codec.encode(other), (), 0))
    assert re.search(r"unknown_version, needs one\S* +planner-2", refold("worker", "list", "--versions").output)


def test_code_is_tried_on_recorded_runs_and_the_first_step_that_differs_is_named(rig: Rig) -> None:
    writes = sum(len(rig.broker.log(topic, 0).records) for topic in ("run-log", "run-snapshot", "dead-letter"))

    same = check_replay(app(one), runs(rig).get("r").state)
    other = check_replay(app(three), runs(rig).get("live").state)

    assert (same.verdict, same.steps, same.over) == ("agrees", 3, True)
    assert (other.verdict, other.step, other.change) == ("differs", 2, "arguments")
    assert (spoken(other.version)[0], spoken(other.code)[0]) == ("one", "three")
    assert check_replay(App("empty"), runs(rig).get("r").state).verdict == "no_agent"
    assert writes == sum(len(rig.broker.log(topic, 0).records) for topic in ("run-log", "run-snapshot", "dead-letter"))


def test_what_a_run_may_still_do_otherwise_is_no_difference(rig: Rig) -> None:
    assert check_replay(app(two), runs(rig).get("live").state).verdict == "agrees"
    assert check_replay(app(two), runs(rig).get("r").state).verdict == "differs"


@pytest.mark.parametrize(
    ("words", "code", "checked", "differ"),
    [
        (("GOOD", "--live"), 0, 1, 0),
        (("GOOD",), 1, 2, 1),
        (("BAD",), 1, 2, 2),
        (("BAD", "--runs", "l*"), 1, 1, 1),
        (("BAD", "--agent", "ship"), 1, 2, 2),
    ],
)
def test_the_gate_ends_with_one_when_a_run_would_stand_still(
    rig: Rig, words: tuple[str, ...], code: int, checked: int, differ: int
) -> None:
    name, *rest = words

    result = refold("replay", "--app", f"{MODULE}:{name}", *rest, "--json")

    assert result.exit_code == code
    told: Any = json.loads(result.stdout)
    assert (told["ok"], told["checked"], told["differ"]) == (not differ, checked, differ)


def test_runs_that_began_on_something_else_are_told_of_and_do_not_fail_the_gate(rig: Rig) -> None:
    (began,) = GOOD.agents["ship"].foundation

    spoken_of = refold("replay", "--app", f"{MODULE}:OLD", "--live")
    checked = json.loads(refold("replay", "--app", f"{MODULE}:OLD", "--live", "--json").stdout)
    shown = refold("replay", "live", "--app", f"{MODULE}:OLD")

    needs = f"Python {began.removeprefix('py')} (here Python 2.7)"
    assert spoken_of.exit_code == 0
    assert f"warning: 1 run began on {needs}: check with that" in " ".join(spoken_of.output.split())
    assert (checked["ok"], checked["other_foundation"], checked["runs"][0]["needs"]) == (True, 1, needs)
    assert f"warning: the run began on {needs}" in " ".join(shown.output.split())


def test_runs_of_a_version_that_the_app_lacks_are_told_of(rig: Rig) -> None:
    told = refold("replay", "--app", f"{MODULE}:GOOD", "--live", "--json")

    assert "warning: 1 run began on version one" in told.output
    assert json.loads(told.stdout)["runs"][0]["needs"] == "version one"


def test_runs_that_began_on_what_is_here_are_not_warned_of(rig: Rig) -> None:
    told = refold("replay", "--app", f"{MODULE}:BOTH", "--live", "--json")

    assert "warning" not in told.output
    assert json.loads(told.stdout)["other_foundation"] == 0


def test_a_gate_that_has_checked_nothing_says_so(rig: Rig) -> None:
    result = refold("replay", "--app", f"{MODULE}:GOOD", "--runs", "nothing-*")

    assert result.exit_code == 3
    assert "nothing was checked" in result.output


def test_a_run_is_replayed_and_its_place_told(rig: Rig) -> None:
    stands = refold("replay", "live", "--app", f"{MODULE}:GOOD")
    differs = refold("replay", "live", "--app", f"{MODULE}:BAD")

    assert stands.exit_code == 0
    assert '1  call step({"n":1})  CallCompleted' in stands.output
    assert "2 steps, as recorded; it waits for step 2" in stands.output
    assert differs.exit_code == 1
    assert "step 2 is call step" in differs.output


def test_a_change_in_place_agrees_with_histories_of_before_it_and_after(rig: Rig) -> None:
    old = begun(app(one, named=False), 2)
    new = begun(app(patched, named=False), 3)
    finish(new)

    for recorded in (old, new):
        assert check_replay(app(patched, named=False), runs(recorded).get("r").state).verdict == "agrees"
    assert step(1) == 1
