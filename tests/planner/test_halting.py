"""What is halted is not ordered, is not lost, and goes out once when it goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core.events import Entry
from refold.core.ids import RunId, call_id, log_key
from refold.core.messages import RunOperation, ToolRequest
from refold.core.planning.copying import copy_of, fork_asked
from refold.core.topics import RUN_LOG
from refold.core.wire import canonical, codec
from tests.planner import kin
from tests.planner.clocked import DAY, Rig
from tests.roots import TRUST, entry

HOUR = DAY // 24


def halting(rig: Rig, name: str, reason: str | None = "look first") -> None:
    """The authority says that something is halted, or goes on."""
    said = entry(name, "halt", reason)
    for number in range(rig.broker.partitions):
        rig.write("catalog", said.name, codec.encode(said), partition=number)
    rig.run(1_000)


@pytest.fixture
def rig() -> Rig:
    """Give a planner that trusts the authority of the tests."""
    return Rig(trust=TRUST)


def ordered(rig: Rig) -> list[tuple[str, bool]]:
    """The calls that were ordered so far, and whether they had been before."""
    return [(request.call_id, request.again) for request in rig.requests()]


@pytest.mark.parametrize("name", ["halt/all", "halt/agent/paying", "halt/tool/pay", "halt/pool/default"])
@pytest.mark.parametrize("days", [0, 3])
def test_a_halted_call_waits_and_goes_out_once_when_it_goes_on(rig: Rig, name: str, days: int) -> None:
    halting(rig, name)
    rig.start("r-1", "paying", {"what": "it"})
    rig.run(10_000 + days * DAY)
    assert (rig.kinds("r-1")[-1], rig.requests(), rig.alarms.count("call.late")) == ("CallDispatched", [], 0)

    halting(rig, name, None)

    assert ordered(rig) == [(call_id("r-1", 3), False)]
    for request in rig.take():
        rig.answer(request)
    rig.run(1_000)
    assert rig.kinds("r-1")[-1] == "RunCompleted"


def test_others_are_ordered_meanwhile(rig: Rig) -> None:
    halting(rig, "halt/tool/pay")
    rig.start("r-1", "paying", {"what": "it"})
    rig.start("r-2", "looking", {"what": "it"})

    rig.run(1_000)

    assert [request.tool for request in rig.requests()] == ["look"]


def test_what_was_sent_before_it_was_halted_is_sent_again(rig: Rig) -> None:
    rig.start("r-1", "looking", {"what": "it"})
    rig.start("r-2", "paying", {"what": "it"})
    rig.run(1_000)
    halting(rig, "halt/tool/look")
    rig.take()
    rig.run(HOUR)
    before = ordered(rig)

    halting(rig, "halt/tool/look", None)

    assert [again for again in ordered(rig)[len(before) :] if again[0].startswith("r-1")] == [("r-1/3", True)]
    assert [request.run_id for request in rig.requests()].count("r-1") == 2


def test_a_planner_that_comes_later_keeps_to_it_and_sends_all_when_it_goes_on(rig: Rig) -> None:
    halting(rig, "halt/tool/pay")
    rig.start("r-1", "paying", {"what": "it"})
    rig.run(1_000)
    rig.successor()
    rig.run(10_000)
    assert rig.requests() == []

    halting(rig, "halt/tool/pay", None)

    assert [request.call_id for request in rig.requests()] == ["r-1/3"]


def test_a_run_that_sleeps_in_the_snapshot_wakes_when_its_halt_is_lifted(rig: Rig) -> None:
    halting(rig, "halt/tool/pay")
    for number in range(300):
        rig.start(f"r-{number}", "paying", {"what": "it"})
    rig.run(7_000)  # kept in the snapshot, and not due by themselves
    rig.successor()
    rig.run(500)
    assert rig.requests() == []

    halting(rig, "halt/tool/pay", None)

    assert {request.call_id for request in rig.requests()} == {f"r-{number}/3" for number in range(300)}


@pytest.mark.parametrize(("agent", "above"), [("chief", ["chief", "boss"]), ("leaver", [])])
def test_an_order_names_the_agents_that_wait_for_its_run(agent: str, above: list[str]) -> None:
    family = kin.rig()
    family.answers = False

    kin.ask(family, "r", agent, {"n": 4} if agent == "chief" else None)
    family.pump()

    orders = [record.value for record in family.reader.scan("tool-requested.default") if record.value]
    [request] = [codec.decode(ToolRequest, order) for order in orders]
    assert (request.agent, request.above) == ("worker", above)


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("lifted", ["within", "after"])
def test_a_call_of_a_fork_goes_out_once_and_none_of_what_it_copies(rig: Rig, lifted: str, dies: bool) -> None:
    halting(rig, "halt/tool/pay")
    rig.start("r-1", "paying", {"what": "it"})
    rig.run(1_000)
    head = rig.history("r-1")[0].head
    said = {"source": "r-1", "at": head.seq, "head": head.id.hex()}
    operation, before = RunOperation(RunId("f-1"), "o", "fork", canonical.dumps(said)), None
    for record in [each for each in rig.broker.log(RUN_LOG, 0).records if (each.key or b"").startswith(b"r-1/")]:
        entry = codec.decode(Entry, record.value or b"")
        fresh = replace(copy_of(entry, fork_asked(operation), RunId("f-1"), before), nonce=b"copy")
        name, value = codec.encode_entry(fresh)
        rig.write(RUN_LOG, log_key(fresh.run_id, fresh.seq, name).decode(), value)
        rig.run()
        before = rig.history("f-1")[0]
    if dies:
        rig.successor()
    rig.run(1_000)
    if lifted == "within":
        halting(rig, "halt/tool/pay", None)
        rig.run(DAY)
    assert [call for call, _ in ordered(rig) if call.startswith("f-1")] == []

    rig.operate("f-1", "fork", said)
    rig.run(1_000)
    halting(rig, "halt/tool/pay", None)

    assert [each for each in ordered(rig) if each[0].startswith("f-1")] == [(f"f-1/{head.seq + 2}", False)]
