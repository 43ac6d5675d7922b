"""A run log that has lost acknowledged records is noticed at once, and folded again."""

from __future__ import annotations

import json
from dataclasses import replace

from refold.core.ids import parse_log_key
from refold.core.run.log import GAP
from refold.core.topics import RUN_LOG, RUN_SIGNALLED, RUN_SNAPSHOT, tool_completed
from refold.engine.ports.log import Outgoing
from tests.planner import clocked
from tests.planner.rig import Rig


def entries(rig: Rig) -> list[bytes | None]:
    """The keys of the entries in the run log."""
    return [record.key for record in rig.reader.scan(RUN_LOG) if parse_log_key(record.key)]


def busy(runs: int = 4) -> Rig:
    """A platform on which some runs are over."""
    rig = Rig()
    for n in range(runs):
        rig.start(f"run-{n}")
    rig.pump()
    return rig


def test_runs_go_on_after_the_log_has_lost_its_end_under_a_living_planner() -> None:
    rig = busy()
    log = rig.broker.log(RUN_LOG, 0)
    rig.broker.truncate(RUN_LOG, 0, log.end // 2)

    rig.start("new")
    rig.pump()

    state = rig.state("new")
    assert state is not None
    assert state.status == "completed"
    assert set(rig.world.done.values()) == {1}
    assert all(rig.state(f"run-{n}").status == "completed" for n in range(4))  # type: ignore[union-attr]


def test_an_end_that_was_lost_and_written_over_is_noticed_by_what_is_delivered() -> None:
    rig = busy()
    log, position = rig.broker.log(RUN_LOG, 0), rig.log.cursors.find(RUN_LOG, 0)
    assert position is not None
    rig.broker.truncate(RUN_LOG, 0, log.end // 2)
    position.position = log.end  # the consumer was put back without a word

    rig.start("new")
    rig.pump()

    assert rig.planner.counts["log.shrunk"] == 1
    state = rig.state("new")
    assert state is not None
    assert state.status == "completed"


def test_an_entry_that_was_taken_and_lost_before_it_was_read_is_missed_where_it_was() -> None:
    rig = Rig()
    rig.answers = False
    rig.log.cursors.flow(RUN_LOG, 0, paused=True)
    rig.start("run-0")
    rig.pump()
    end = rig.broker.log(RUN_LOG, 0).end - 1
    rig.broker.truncate(RUN_LOG, 0, end)
    successor = Rig()
    successor.start("run-0")
    successor.pump()
    written = list(successor.reader.scan(RUN_LOG))
    for record in written[end:]:
        rig.broker.write(Outgoing(RUN_LOG, 0, record.key or b"", record.value, (), 0))

    rig.log.cursors.flow(RUN_LOG, 0, paused=False)
    rig.pump()

    assert rig.planner.counts["log.shrunk"] == 1
    state = rig.state("run-0")
    assert state is not None
    assert state.status == "completed"
    assert entries(rig) == [record.key for record in written if parse_log_key(record.key)], "none is buried"


def test_an_end_that_was_lost_and_written_over_is_noticed_when_the_log_is_read_once_more() -> None:
    rig = busy(1)
    end = rig.broker.log(RUN_LOG, 0).end
    rig.broker.truncate(RUN_LOG, 0, end - 1)
    rig.broker.write(Outgoing(RUN_LOG, 0, b"beat/0000000000/00", None, (), 0))

    rig.log.cursors.start(RUN_LOG, 0, 0)  # a consumer that begins anew knows nothing of what was there
    rig.pump()

    assert rig.planner.counts["log.shrunk"] == 1


def test_a_run_whose_beginning_was_lost_under_its_entry_begins_again() -> None:
    rig = Rig()
    rig.answers = False
    rig.start("run-0")
    rig.pump()
    position = rig.log.cursors.find(RUN_LOG, 0)
    assert position is not None
    rig.broker.truncate(RUN_LOG, 0, 0)
    position.position = 0  # nothing was read of it, so nothing is missed

    rig.answers = True
    rig.pump()

    state = rig.state("run-0")
    assert state is not None
    assert state.status == "completed"
    assert not rig.stalled
    assert set(rig.world.done.values()) == {1}


def test_a_run_whose_beginning_was_copied_behind_its_history_and_lost_there_begins_again() -> None:
    rig = with_its_beginning_behind(Rig())
    rig.pump()
    lose_the_copy(rig)

    rig.hold = lambda request: False
    rig.pump()

    state = rig.state("run-0")
    assert state is not None
    assert state.status == "completed"
    assert not rig.stalled
    assert set(rig.world.done.values()) == {1}


def test_what_is_left_of_a_run_is_not_buried_by_a_planner_that_has_not_seen_its_beginning() -> None:
    rig = with_its_beginning_behind(Rig())
    lose_the_copy(rig)
    rig.broker.truncate(RUN_SNAPSHOT, 0, 0)
    left = entries(rig)

    rig.boot()

    assert rig.stalled == {"run-0": GAP}
    assert entries(rig) == left


def test_a_topic_of_inputs_that_has_lost_its_end_is_read_on() -> None:
    rig = Rig()
    rig.settings = replace(rig.settings, snapshot_ms=0)
    rig.boot()
    rig.start("old")
    rig.pump()
    rig.broker.truncate(tool_completed("default"), 0, 2)

    rig.start("new")
    rig.pump()

    state = rig.state("new")
    assert state is not None
    assert state.status == "completed"


def test_an_end_that_was_lost_before_it_was_read_is_noticed_though_nobody_writes() -> None:
    rig = clocked.Rig()
    rig.run(1)
    unread = rig.log.cursors.find(RUN_LOG, 0)
    assert unread is not None
    unread.paused = True
    rig.start("r", "looking", {"what": "it"})
    rig.run(1)
    assert rig.history("r")[0].status == "running"
    rig.broker.truncate(RUN_LOG, 0, 0)
    unread.paused = False

    for _ in range(3):
        rig.run(rig.settings.snapshot_ms)

    assert rig.planner.counts["log.shrunk"] == 1


def test_nobody_is_refused_on_the_grounds_of_what_the_log_has_lost_since() -> None:
    rig = clocked.Rig()
    rig.start("r", "told", {})
    rig.run(10)
    waits = rig.broker.log(RUN_LOG, 0).end
    say(rig, "s-1")
    rig.run(rig.settings.snapshot_ms)
    cursor = rig.log.cursors.find(RUN_LOG, 0)
    assert cursor is not None
    rig.broker.truncate(RUN_LOG, 0, waits)
    cursor.position = rig.broker.log(RUN_LOG, 0).end  # the consumer was put back without a word

    say(rig, "s-2")
    rig.run(10)

    assert rig.planner.counts["log.shrunk"] == 1
    assert rig.letters() == []


def say(rig: clocked.Rig, name: str) -> None:
    said = {"run_id": "r", "signal_id": name, "kind": "signal", "name": "go"}
    rig.write(RUN_SIGNALLED, f"r/{name}", json.dumps(said).encode())


def with_its_beginning_behind(rig: Rig) -> Rig:
    """A run waits for a call; its first entry was repeated behind the others, and the log was cleaned."""
    rig.hold = lambda request: json.loads(request.args)["n"] == 1
    rig.start("run-0")
    rig.pump()
    first = next(record for record in rig.reader.scan(RUN_LOG) if parse_log_key(record.key))
    rig.broker.write(Outgoing(RUN_LOG, 0, first.key or b"", first.value, (), 0))
    rig.broker.compact(RUN_LOG, 0)
    return rig


def lose_the_copy(rig: Rig) -> None:
    """The log loses its last record."""
    rig.broker.truncate(RUN_LOG, 0, rig.broker.log(RUN_LOG, 0).end - 1)
