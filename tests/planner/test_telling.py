"""What a planner says of the runs that it has, in the log of its process and in theirs."""

from __future__ import annotations

from refold.core.events import Entry
from refold.core.ids import RunId, parse_log_key
from refold.core.topics import RUN_LOG
from refold.core.wire import codec
from tests.planner.clocked import Rig


def test_a_take_over_says_where_a_run_goes_on_when_its_code_is_opened() -> None:
    rig = Rig()
    rig.start("r", "looking", {"what": "it"})
    rig.run(10)
    [request] = rig.take()
    assert "run.resumed" not in rig.alarms

    rig.successor()
    rig.run(10)
    before = rig.alarms.count("run.resumed")
    rig.answer(request)
    rig.run(10)

    assert before == 0
    assert [facts for name, facts in rig.news if name == "run.resumed"] == [{"run_id": "r", "step": 1, "events": 4}]


def test_a_run_that_was_forgotten_here_does_not_go_on_from_elsewhere() -> None:
    rig = Rig()
    rig.start("r", "napping", {"seconds": 5})
    rig.run(10)

    lane = rig.planner.lanes.get(0)
    assert lane is not None
    lane._agents.forget(RunId("r"))
    rig.run(6_000)

    assert rig.kinds("r")[-1] == "RunCompleted"
    assert "run.resumed" not in rig.alarms


def test_entries_name_the_process_that_has_written_them() -> None:
    rig = Rig()
    rig.process = "one"
    rig.successor()
    rig.start("r", "napping", {"seconds": 5})
    rig.run(10)
    rig.process = "two"
    rig.successor()
    rig.run(6_000)

    records = [record for record in rig.broker.log(RUN_LOG, 0).records if parse_log_key(record.key)]
    assert [codec.decode(Entry, record.value or b"").actor for record in records] == ["p/one", "p/two"]
