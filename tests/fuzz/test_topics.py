"""What no service writes, in every topic that anybody reads: void, counted and reported, and nobody ends by it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from refold.client.operations.runs import Runs
from refold.client.reading.approval import ApprovalIndex
from refold.client.reading.budget import limits_in_use
from refold.client.reading.member import agents_served, tools_served
from refold.client.streams import live_parts
from refold.client.verify import verify_log
from refold.core.approval import signature
from refold.core.approval.decision import Decision
from refold.core.ids import CallId, RunId
from refold.core.messages import ApprovalDecision, ToolRequest
from refold.core.wire import codec
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryLogReader
from refold.engine.ports.log import Outgoing, Record
from refold.engine.runtime.clock import clock_ms
from tests.approval.driving import SERVICE, Process, request
from tests.approval.driving import TOPICS as APPROVAL
from tests.approval.driving import World as Voting
from tests.archive.world import ALL, DAY
from tests.archive.world import World as Archived
from tests.fuzz.poison import poison
from tests.recovery.executor_rig import CLAIMS, ORDERS
from tests.recovery.executor_rig import Rig as Executing
from tests.roots import TRUST

SEEDS = range(2)


def read(record: Outgoing, offset: int, at_ms: int = 7) -> Record:
    return Record(record.topic, record.partition, offset, record.key, record.value, list, at_ms)


def poisoned(topic: str, seed: int, folder: Path) -> Archived:
    """Topics with one run that is over, and what no service writes behind it."""
    world = Archived(folder / "archive")
    world.run("first")
    for record in poison(topic, seed, 4):
        world.broker.write(record)
    return world


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("topic", [ORDERS, CLAIMS, "catalog"])
def test_no_executor_ends_by_it(topic: str, seed: int) -> None:
    rig = Executing()
    for record in poison(topic, seed):
        if topic == CLAIMS:
            rig.claims.append(record)
            rig.turn(*rig._claimed(len(rig.claims) - 1))
        else:
            at = next(rig.orders)
            rig.log[at] = read(record, at, rig.now_ms)
            rig.turn(rig.log[at])
    rig.turn(after_ms=60_000)
    began = len(rig.started)

    rig.ask(ToolRequest(CallId("good/3"), RunId("good"), 1, 2, 0, "fire", "{}", "good-key", "pure", 3_000))
    rig.end()

    assert len(rig.started) > began
    assert [result.status for result in rig.told(CallId("good/3"))] == ["completed"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("topic", APPROVAL)
def test_no_approval_service_ends_by_it(topic: str, seed: int) -> None:
    world = Voting()
    first = Process(world).run()
    for record in poison(topic, seed, 3):
        if not record.key.startswith(b"key/"):  # who cannot read a key in the catalog takes it for a revocation
            world.broker.write(record)
    first.run()
    question = request()
    world.ask(question)
    world.vote(question, "ada")
    first.run()
    Process(world, "b").run()

    decided = [record for record in world.records("approval-decided") if record.key == question.approval_id.encode()]
    tokens = [codec.decode(ApprovalDecision, record.value or b"").token for record in decided]
    keys = {SERVICE.kid: SERVICE.public()}
    assert {Decision.parse(signature.verified(each, keys, use="decision")).verdict for each in tokens} == {"approve"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("topic", ALL)
def test_no_pass_of_the_archivist_ends_by_it(topic: str, seed: int, tmp_path: Path) -> None:
    world = poisoned(topic, seed, tmp_path)
    world.broker.now += 31 * DAY

    swept = world.archivist().sweep()

    assert "first" in swept.archived
    assert world.values("first") == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("topic", ALL)
def test_no_command_of_the_client_ends_by_it(topic: str, seed: int, tmp_path: Path) -> None:
    world = poisoned(topic, seed, tmp_path)
    reader = world.chronicle.reader

    index = ApprovalIndex(4, TRUST, clock_ms)
    for found in world.records():
        index.feed(found)
    runs = Runs(reader)

    assert runs.get("first").status == "completed"
    assert "first" in {run.state.run_id for run in runs.all()}
    assert verify_log(reader, TRUST, now_ms=0, settle_s=0).runs


@pytest.mark.parametrize("seed", range(20))
def test_no_reader_of_sums_and_streams_ends_by_it(seed: int) -> None:
    broker = MemoryBroker(("run-log", "run-stream.web", "budget-spent", "member"), 1)
    for topic in broker.topics:
        for record in poison(topic, seed):
            broker.write(record)
    reader = MemoryLogReader(broker)

    limits_in_use(reader.scan("budget-spent"))
    agents_served(reader.scan("member"))
    tools_served(reader.scan("member"))
    list(live_parts(Runs(reader), RunId("r"), timedelta(0)))
