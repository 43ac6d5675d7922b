"""Live forks that others, a crash or time get in the way of."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from refold.core.approval.signature import NOBODY
from refold.core.ids import RunId, home, log_key
from refold.core.messages import RunOperation
from refold.core.planning import copying
from refold.core.planning.copying import fork_asked
from refold.core.wire import canonical, codec
from refold.engine.planner.settings import Limits, PlannerSettings
from refold.engine.ports.effects import Read
from refold.engine.ports.log import Outgoing
from refold.lab.evidence.bundle import Bundle, BundledRun
from refold.lab.evidence.verify import verify_bundle
from tests.evidence.story import file_of
from tests.recovery.retrying import begun, shop, three
from tests.recovery.rig import Rig
from tests.recovery.test_forking import SOURCE, asked_for, done, ends, entries, finished, fork, requests, waiting


def until_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes turns until the planner has asked for a history."""
    asked: list[Read] = []
    read = rig._log.read

    def noted(topic: str, partition: int, offset: int) -> None:
        asked.append(Read(topic, partition, offset))
        read(topic, partition, offset)

    take = rig._log.take
    monkeypatch.setattr(rig._log, "read", noted)
    while not any(each.topic == "run-log" for each in asked):
        rig._turn()
    monkeypatch.setattr(rig._log, "take", lambda _most, wait: take(1, wait))


def test_a_run_that_begins_while_a_fork_waits_for_its_history_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = done()
    rig.operate("f-1", "fork", **asked_for(rig, ends(rig)[2]))
    until_read(rig, monkeypatch)
    rig.start("f-1", "shop")
    rig.run()

    assert rig.state("f-1").request.forked is None  # type: ignore[union-attr]
    assert rig.events("f-1") == rig.events(SOURCE)[:4]
    assert rig.letters() == 1
    finished(rig)
    assert rig.state("f-1").status == "completed"


@pytest.mark.parametrize("answers", [1, 2])
def test_a_fork_may_name_what_came_since_the_reading_began_that_it_shares(
    answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = begun(shop(three), done=1)
    asked = list[tuple[str, int, int]]()
    read = rig._log.read
    monkeypatch.setattr(rig._log, "read", lambda *place: asked.append(place))
    rig.operate("f-1", "fork", **asked_for(rig, 99))
    rig.run()
    for _ in range(answers):  # after the second the source is over
        rig.finish(SOURCE)
        rig.run()
    rig.operate("f-2", "fork", **asked_for(rig, rig.state(SOURCE).head.seq - (answers == 2)))
    rig.run()
    monkeypatch.undo()
    for place in asked:
        read(*place)
    rig.run()

    assert rig.letters() == 0
    assert [rig.events(name).count("RunForked") for name in ("f-1", "f-2")] == [1, 1]


@pytest.mark.parametrize("first", [1, 2])
def test_two_forks_into_one_id_at_once_are_never_one_history(first: int) -> None:
    rig = done()
    rig.start("r-2", "shop")
    rig.run()
    finished(rig, "r-2")
    rig.operate("f-1", "fork", **asked_for(rig, ends(rig)[first]))
    rig.now += 1
    rig.operate("f-1", "fork", **asked_for(rig, ends(rig)[3 - first], "r-2"))
    rig.run()

    assert rig.letters() == 1
    assert rig.state("f-1").seqs[-1] < rig.events("f-1").index("RunForked") + 1
    finished(rig)
    assert rig.state("f-1").status == "completed"
    assert {request.step for request in requests(rig, "f-1")} == set(range(first + 1, 4))
    others = {request.key for run in (SOURCE, "r-2") for request in requests(rig, run)}
    assert not {request.key for request in requests(rig, "f-1")} & others


def test_a_fork_is_written_nowhere_but_at_its_home() -> None:
    rig = Rig(shop(three), partitions=4)
    rig.start(SOURCE, "shop")
    rig.run()
    finished(rig, SOURCE)
    place = home(RunId(SOURCE), 4)
    name = next(f"f-{n}" for n in range(99) if home(RunId(f"f-{n}"), 4) != place)
    said = RunOperation(RunId(name), "s", "fork", canonical.dumps(asked_for(rig, ends(rig)[1])), "op")
    rig.broker.write(Outgoing("run-operated", place, f"{name}/s".encode(), codec.encode(said), (), 0))
    rig.run()

    assert rig.events(name) == []
    letters = [record for number in range(4) for record in rig.broker.log("dead-letter", number).records]
    assert len(letters) == 1


def raced(rig: Rig, place: int) -> list[bytes]:
    """Two planners have copied two entries of a history, and both have written this one; the names of both."""
    said = RunOperation(RunId("f-1"), "s", "fork", canonical.dumps(asked_for(rig, ends(rig)[2])))
    before, names = None, list[bytes]()
    for number, entry in enumerate(entries(rig, SOURCE)[:2]):
        fresh = copying.copy_of(entry, fork_asked(said), RunId("f-1"), before)
        for nonce in (b"one", b"two") if number == place else (b"one",):
            name, value = codec.encode_entry(replace(fresh, nonce=nonce))
            rig.broker.write(Outgoing("run-log", 0, log_key(RunId("f-1"), fresh.seq, name), value, (), 0))
            names += [name] if number == place else []
        before = rig.state("f-1")
    return names


@pytest.mark.parametrize("place", range(2))
def test_two_planners_that_copy_at_once_leave_one_history_for_whoever_comes(place: int) -> None:
    rig = done()
    rig.later(86_400_000)  # what is copied is old
    raced(rig, place)
    rig.deploy(shop(three))
    fork(rig, ends(rig)[2])
    rig.deploy(shop(three))
    finished(rig)

    assert (rig.holds(), rig.letters()) == (0, 0)
    assert rig.state("f-1").status == "completed"
    assert {request.step for request in requests(rig, "f-1")} == {3}


def test_nothing_follows_of_a_part_of_a_history_that_was_stalled_and_is_repaired() -> None:
    rig = done()
    names = raced(rig, 1)
    again = next(record for record in rig.records("run-log") if (record.key or b"").startswith(b"f-1/"))
    rig.broker.write(Outgoing("run-log", 0, again.key or b"", again.value, (), 0))  # now order proves nothing
    rig.deploy(shop(three))
    assert rig.holds() == 1
    rig.operate("f-1", "repair", head=names[1].hex())
    rig.run()

    assert rig.holds() == 0
    assert requests(rig, "f-1") == []
    fork(rig, ends(rig)[2])
    finished(rig)
    assert [request.step for request in requests(rig, "f-1")] == [3]


def test_a_fork_that_is_asked_for_again_when_it_is_over_is_the_same_and_with_another_edit_it_is_not() -> None:
    rig = done()
    fork(rig, ends(rig)[1], edit={"n": 30}, tool="charge")
    finished(rig)
    rig.deploy(shop(three))  # it reads again what was not committed
    rig.later(3_600_000)
    fork(rig, ends(rig)[1], edit={"n": 30}, tool="charge")
    assert rig.letters() == 0
    rig.later(1)
    fork(rig, ends(rig)[1], edit={"n": 31}, tool="charge")

    assert rig.letters() == 1
    assert rig.events("f-1").count("RunForked") == 1


def test_a_fork_of_a_child_is_not_held_by_the_pause_of_the_parent() -> None:
    rig = waiting()
    rig.operate(SOURCE, "pause")
    rig.run()
    fork(rig, rig.state("r-1.4").head.seq, source="r-1.4")
    finished(rig, "f-1")

    assert rig.state("f-1").status == "completed"
    assert rig.state("r-1.4").paused


def test_a_fork_of_a_run_that_is_paused_itself_is_paused_and_calls_nothing() -> None:
    rig = begun(shop(three), done=1)
    rig.operate(SOURCE, "pause")
    rig.run()
    fork(rig, 99)
    assert rig.asked("f-1") == []
    rig.later(1)
    rig.operate("f-1", "resume")
    rig.run()
    finished(rig, "f-1")

    assert (rig.state("f-1").status, rig.state(SOURCE).status) == ("completed", "suspended")


def test_a_long_history_is_copied_a_part_in_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.recovery.rig.PlannerSettings", partial(PlannerSettings, limits=Limits(flying_entries=2)))
    rig = done()
    at, parts = ends(rig)[2], list[int]()
    write = rig.planner.turn

    def counted(*given: Any) -> list[Any]:
        effects = write(*given)
        sent = [each for effect in effects for each in getattr(effect, "records", ()) if each.topic == "run-log"]
        parts.append(sum(each.key.startswith(b"f-1/") for each in sent))
        return effects

    monkeypatch.setattr(rig.planner, "turn", counted)
    rig.operate("f-1", "fork", **asked_for(rig, at))
    rig.run()

    assert max(parts) <= 2
    finished(rig)
    assert rig.state("f-1").status == "completed"


@pytest.mark.parametrize("most", [1, 200])
@pytest.mark.parametrize("kind", ["cancel", "pause", "annotate"])
def test_words_that_came_before_a_fork_wait_for_it_and_a_cancel_comes_before_any_call(
    kind: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(flying_entries=most)
    monkeypatch.setattr("tests.recovery.rig.PlannerSettings", partial(PlannerSettings, limits=limits))
    rig = begun(shop(three), done=1)
    rig.operate("f-1", kind, note="look")
    rig.run()
    rig.now += 1
    fork(rig, 99)

    last = {"cancel": "RunCancelled", "pause": "RunSuspended", "annotate": "RunAnnotated"}[kind]
    assert (rig.events("f-1")[-1], rig.letters()) == (last, 0)
    assert len(requests(rig, "f-1")) == (kind != "cancel")
    assert rig.events("f-1").count("RunForked") == 1


@pytest.mark.parametrize("most", [100, 300, 340, 600, 900])
def test_a_fork_that_the_log_does_not_take_whole_fails_and_is_retried_under_no_key_of_its_source(most: int) -> None:
    rig = begun(shop(three), done=1)
    rig.refuses["run-log"] = most
    fork(rig, 99, reason="x" * 900)
    rig.refuses.clear()
    rig.deploy(shop(three))
    rig.later(1)
    if rig.state("f-1").over:
        assert rig.state("f-1").status == "failed"
        rig.operate("f-1", "retry", seq=rig.state("f-1").head.seq)
        rig.run()
    finished(rig)

    assert not {request.key for request in requests(rig, "f-1")} & {request.key for request in requests(rig, SOURCE)}
    assert not rig.state("f-1").copying
    assert rig.holds() == 0
    assert rig.events("f-1").count("RunForked") == ("RunRequested" in rig.events("f-1"))


def test_evidence_of_a_fork_lacks_no_claims_of_the_calls_that_its_source_has_made() -> None:
    rig = done()
    fork(rig, ends(rig)[2])
    finished(rig)
    records = [record for record in rig.records("run-log") if (record.key or b"").startswith(b"f-1/")]
    bundle = Bundle(RunId("f-1"), [BundledRun(RunId("f-1"), records, ())], [], [], (), redacted=frozenset())

    found = verify_bundle(file_of(bundle), NOBODY)

    assert found.holes == []
    assert [note for note in found.notes if "claim" in note] == ["1 chained calls have no claim in the bundle"]
