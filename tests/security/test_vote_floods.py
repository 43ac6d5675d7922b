"""Somebody with an approver's rights and without a key writes votes as large as their topic takes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from refold.core.ids import home
from refold.core.messages import ApprovalVote
from refold.core.topics import APPROVAL_DECIDED, APPROVAL_VOTED
from refold.core.wire import codec
from refold.dev.kafka import EmbeddedKafka
from refold.engine.runtime.settings import KafkaSettings
from tests.approval.driving import request
from tests.approval.test_killed import PARTITIONS, Bench
from tests.waiting import eventually, under_load

MOST_MIB = 240
SIZE, COUNT = 1_000_000, 128
STARTS = dict.fromkeys(range(PARTITIONS), 0)


@pytest.fixture
def bench(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Bench]:
    """Give topics with keys, roles and a policy in their catalog."""
    prefix = f"flooded{uuid4().hex[:8]}."
    made = Bench(KafkaSettings(bootstrap=kafka.bootstrap, prefix=prefix, partitions=PARTITIONS), tmp_path)
    with made.processes:
        yield made


def most_mib(pid: int) -> int:
    """The most memory that a process ever had."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def test_a_flood_of_votes_leaves_the_service_small_and_its_successor_too(bench: Bench) -> None:
    asked = request()
    bench.ask(asked)
    service = bench.serve()
    # It writes a beat into each partition when it is live; what lay there before gets no answer.
    eventually(lambda: len({each.partition for each in bench.reader.scan(APPROVAL_DECIDED)}) == PARTITIONS)
    settings = {"bootstrap.servers": bench.kafka.bootstrap, "message.max.bytes": 16 << 20, "log_level": 0}
    producer = Producer(settings)
    for number in range(COUNT):
        run = asked.run_id if number % 2 else f"nobody-{number}"
        approval = asked.approval_id.replace(asked.run_id, run, 1)
        vote = codec.encode(ApprovalVote(approval, f"v{number}", run, f"{number}" + "x" * SIZE))
        place = home(run, PARTITIONS)
        producer.produce(bench.kafka.prefix + APPROVAL_VOTED, vote, f"{approval}/v{number}", place)
        producer.flush(60)
    # By offsets: each letter has the bytes of its vote, and nobody else writes this topic.
    written = lambda: sum(bench.reader.since("dead-letter-approval", STARTS).ends.values())  # noqa: E731
    letters = eventually(
        lambda: (found := written()) == COUNT and found, within=under_load(60), every=0.5, what="an answer to each"
    )
    alive = most_mib(service.pid)
    service.kill()
    service.wait()

    successor = bench.serve()
    decided = bench.say("approve", asked.approval_id, "--actor", "ada", "--timeout", "60")

    assert (letters, decided["decision"]["verdict"]) == (COUNT, "approve")
    assert alive < MOST_MIB
    assert most_mib(successor.pid) < MOST_MIB
