"""The contract of `refold.engine.ports.log`: reading without a group."""

from __future__ import annotations

import pytest

from refold.core.errors import NotFoundError
from tests.contract.log_benches import CHAIN, MORE, PARTITIONS, Bench, outgoing, values


def test_a_scan_gives_every_record_up_to_the_end_at_its_call(bench: Bench) -> None:
    log = bench.log()
    log.append([outgoing(b"%d" % i, topic=CHAIN, partition=i % 2) for i in range(10)])

    scan = bench.reader().scan(CHAIN)
    log.append([outgoing(b"later", topic=CHAIN)])
    found = list(scan)

    assert values(found, CHAIN, 0) == [b"0", b"2", b"4", b"6", b"8"]
    assert values(found, CHAIN, 1) == [b"1", b"3", b"5", b"7", b"9"]
    assert [r.value for r in bench.reader().scan(CHAIN, 1)] == [b"1", b"3", b"5", b"7", b"9"]


def test_a_scan_ends_though_the_last_records_are_gone(bench: Bench) -> None:
    bench.log().append([outgoing(b"1", topic=CHAIN)])
    bench.leave_a_hole(CHAIN, 0)
    bench.leave_a_hole(CHAIN, 1)

    assert [r.value for r in bench.reader().scan(CHAIN)] == [b"1"]


def test_a_scan_of_nothing_ends(bench: Bench) -> None:
    assert list(bench.reader().scan(MORE)) == []


def test_a_tail_goes_on_where_a_scan_ends(bench: Bench) -> None:
    log = bench.log()
    log.append([outgoing(b"1", topic=CHAIN), outgoing(b"2", topic=CHAIN, partition=1)])
    tail = bench.reader().tail(CHAIN)

    before = [record.value for record in iter(lambda: next(tail), None) if record]
    log.append([outgoing(b"3", topic=CHAIN)])
    after = next(record for record in tail if record)

    assert sorted(value or b"" for value in before) == [b"1", b"2"]
    assert (after.value, after.offset) == (b"3", 1)


def test_a_reader_counts_partitions_and_knows_what_is_missing(bench: Bench) -> None:
    reader = bench.reader()

    assert reader.partitions(CHAIN) == PARTITIONS
    with pytest.raises(NotFoundError, match="refold topics apply"):
        reader.partitions("nowhere")
    with pytest.raises(NotFoundError, match="refold topics apply"):
        list(reader.scan("nowhere"))
