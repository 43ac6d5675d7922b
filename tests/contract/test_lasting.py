"""What a file of records, positions and ledger operations gives back to the next process."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from refold.core.errors import RefoldError, UnreachableError, UsageError
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.memory.lasting import LastingBroker, LastingLedger, Row, RowFile
from refold.engine.adapters.memory.log import LastingEventLog
from refold.engine.ports.ledger import Claim, Claimed, Lapsed
from refold.engine.runtime.settings import LIGHT
from tests.contract.ledger_benches import MemoryBench
from tests.contract.ledger_random import seeded
from tests.contract.log_benches import (
    INPUTS,
    MAX_BYTES,
    MORE,
    PARTITIONS,
    TOPICS,
    LastingBench,
    assigned,
    membership,
    outgoing,
    start,
)
from tests.simulator.world.open_ledger import OpenLedger


class OpenLastingLedger(OpenLedger, LastingLedger):
    """The ledger of a file, whose content tests see."""


def opened(path: Path) -> LastingBroker:
    return LastingBroker(TOPICS, path, PARTITIONS, max_bytes=MAX_BYTES)


def content(broker: LastingBroker) -> list[tuple[object, ...]]:
    return [
        (*record[:5], record.read_headers(), record.at_ms)
        for topic in broker.topics
        for number in range(broker.partitions)
        for record in broker.log(topic, number).records
    ]


def test_records_and_positions_are_there_after_a_restart_and_the_rest_goes_on_behind_them(tmp_path: Path) -> None:
    broker = opened(tmp_path / "records")
    log = LastingEventLog(broker, membership())
    start(log, PARTITIONS)
    log.append([outgoing(b"1"), outgoing(None, topic=MORE, partition=1)])
    log.commit({(INPUTS, 0): 1})
    (written,) = log.append([outgoing(b"2")])

    again = opened(tmp_path / "records")
    taken = start(LastingEventLog(again, membership()), PARTITIONS)

    assert (content(again), again.identity) == (content(broker), broker.identity)
    assert assigned(taken)[0].committed == {INPUTS: 1}
    assert again.log(INPUTS, 0).end == (written.offset or 0) + 1 == 2


def test_nothing_that_was_published_is_read_before_it_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = opened(tmp_path / "records")
    log = LastingEventLog(broker, membership())
    start(log, PARTITIONS)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(broker.log(INPUTS, 0).end))

    log.publish([outgoing(b"1"), outgoing(b"2")])
    log.publish([outgoing(b"3")])
    before = broker.log(INPUTS, 0).end
    log.push()

    assert (before, synced, broker.log(INPUTS, 0).end) == (0, [0], 3)
    assert len(content(opened(tmp_path / "records"))) == 3


def test_wherever_the_last_write_was_cut_it_is_gone_and_all_before_it_is_there(tmp_path: Path) -> None:
    path, rows = tmp_path / "records", list[tuple[int, Row]]()
    file = RowFile(path)
    for number in range(3):
        file.write([("row", number, b"x" * 50 * number)])
        rows.append((path.stat().st_size, ("row", number, b"x" * 50 * number)))
    whole = path.read_bytes()

    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        cut = RowFile(path)
        assert [*cut.rows()] == [row for end, row in rows if end <= size]
        cut.write([("row", 9)])
        assert [*RowFile(path).rows()][-1] == ("row", 9)
    path.write_bytes(whole + bytes(100))  # a file system that has made room, and no more
    assert len([*RowFile(path).rows()]) == 3


def test_a_file_that_is_damaged_before_its_end_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "records"
    opened(path).write_all([outgoing(b"1")])
    opened(path).write_all([outgoing(b"2")])
    whole = path.read_bytes()
    damaged = whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]
    path.write_bytes(damaged)

    with pytest.raises(RefoldError, match="damaged at byte"):
        opened(path)
    assert path.read_bytes() == damaged


def test_after_a_write_that_failed_nothing_more_is_written_or_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = opened(tmp_path / "records")
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, body: write(file, body[:10]))
        with pytest.raises(RefoldError, match="cannot write"):
            broker.write_all([outgoing(b"1")])
    with pytest.raises(RefoldError, match="cannot write"):
        broker.write_all([outgoing(b"2")])

    assert content(broker) == content(opened(tmp_path / "records")) == []


@pytest.mark.parametrize("seed", range(200))
def test_a_ledger_of_the_file_is_that_of_the_process_before_and_answers_as_one_in_memory(
    tmp_path: Path, seed: int
) -> None:
    """Between batches time passes, so that leases lapse."""
    draw, memory, now = Random(seed), MemoryBench(), [1_000_000]
    file = RowFile(tmp_path / "records")
    lasting = OpenLastingLedger(file, lambda: now[0])
    for batch in seeded(seed):
        assert lasting.run(batch) == memory.ledger.run(batch)
        passed = draw.choice((0, 1, 2 * 3_600_000))
        now[0] += passed
        memory.pass_ms(passed)

    again = OpenLastingLedger(RowFile(tmp_path / "records"), lambda: now[0])
    for _, at_ms, operations in RowFile(tmp_path / "records").rows():
        again.repeat(at_ms, operations)

    assert _lapsed(again) == _lapsed(lasting)
    assert again.entries() == lasting.entries()
    assert (again.outbox(), again.aside) == (lasting.outbox(), lasting.aside)


def _lapsed(ledger: OpenLastingLedger) -> list[object]:
    """All leases that lapse, without an heir and with one."""
    return [ledger.run([Lapsed(home, "default", 100, heir)]) for heir in ("", "i9/e-1") for home in (0, 7)]


def test_a_claim_of_a_dead_process_holds_its_lease_and_ends_with_its_heir(tmp_path: Path) -> None:
    claim = Claim(0, "default", "k", "r-1/2", 1, "t1", 60_000, b"order", "i1/e-1")  # type: ignore[arg-type]
    (first,) = opened(tmp_path / "records").ledger.run([claim])

    ledger = opened(tmp_path / "records").ledger
    held = ledger.run([claim._replace(token="t2"), Lapsed(0, "default", 10)])
    inherited = ledger.run([Lapsed(0, "default", 10, "i2/e-1"), claim._replace(token="t2", owner="i2/e-1")])

    assert first == Claimed()
    assert (type(held[0]).__name__, held[1]) == ("Busy", [])
    assert inherited == [[("k", b"order")], Claimed("t1")]


def test_a_reader_at_the_socket_gets_all_records_though_an_answer_holds_some(tmp_path: Path) -> None:
    bench = LastingBench(tmp_path / "records")
    bench.lasting.write_all([outgoing(b"%d" % number, partition=number % 2) for number in range(2_501)])

    records = [*bench.reader().scan(INPUTS)]

    assert sorted(int(record.value or b"") for record in records) == [*range(2_501)]
    assert records[0].read_headers() == [("ce_id", b"1"), ("traceparent", b"00-1")]


def test_a_writer_at_the_socket_is_answered_as_by_a_broker(tmp_path: Path) -> None:
    bench = LastingBench(tmp_path / "records")
    publisher = KafkaPublisher(bench.settings, partitions=PARTITIONS)
    gone = bench.settings.model_copy(update={"bootstrap": f"{LIGHT}{tmp_path / 'nothing'}"})

    assert publisher.send_raw(INPUTS, 1, key=b"k", value=b"v", headers=[("a", b"b")]) == (1, 0)
    with pytest.raises(UsageError, match="too large"):
        publisher.send_raw(INPUTS, 0, key=b"k", value=bytes(MAX_BYTES), headers=[])
    with pytest.raises(UsageError, match="refold topics apply"):
        publisher.send_raw("no-such-topic", 0, key=b"k", value=b"v", headers=[])
    with pytest.raises(UnreachableError):
        KafkaPublisher(gone, partitions=PARTITIONS).send_raw(INPUTS, 0, key=b"k", value=b"v", headers=[])
    assert content(opened(tmp_path / "records")) == [
        (INPUTS, 1, 0, b"k", b"v", [("a", b"b")], bench.lasting.log(INPUTS, 1).records[0].at_ms)
    ]
