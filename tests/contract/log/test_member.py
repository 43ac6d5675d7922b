"""The contract of `refold.engine.ports.log`, rule by rule, in memory and on a real broker: one that reads and
writes.
"""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest

from refold.core.errors import UsageError
from refold.engine.ports.log import NEVER, Assigned, Reached, Shrunk, Taken
from refold.engine.runtime.clock import clock_ms
from tests.contract.log_benches import (
    CHAIN,
    INPUTS,
    MAX_BYTES,
    MORE,
    PARTITIONS,
    TOPICS,
    Bench,
    assigned,
    chains,
    outgoing,
    places,
    start,
    take_until,
    values,
)
from tests.waiting import eventually


def test_the_first_member_has_every_partition_and_nothing_to_catch_up_with(bench: Bench) -> None:
    taken = take_until(bench.log(), lambda taken: len(taken.reached) == PARTITIONS * len(TOPICS))

    empty = dict.fromkeys(TOPICS, 0)
    assert assigned(taken) == {number: Assigned(number, {}, empty, empty) for number in range(PARTITIONS)}
    assert sorted(taken.reached) == [Reached(topic, n, 0) for topic in sorted(TOPICS) for n in range(PARTITIONS)]


def test_an_append_tells_where_its_records_lie(bench: Bench) -> None:
    log = bench.log()

    first = log.append([outgoing(b"1", token=7), outgoing(b"2", token=8), outgoing(b"x", partition=1, token=9)])
    second = log.append([outgoing(b"3", token=10)])

    assert places(first) == [(7, 0), (8, 1), (9, 0)]
    assert places(second) == [(10, 2)]


def test_an_append_tells_when_the_broker_took_it_and_every_reader_sees_the_same_time(bench: Bench) -> None:
    log = bench.log()
    log.publish([outgoing(b"2", topic=MORE, token=2)])
    (appended,) = log.append([outgoing(b"1", token=1)])

    taken = take_until(log, lambda taken: len(taken.records) == 2 and taken.deliveries)

    told = {INPUTS: appended.at_ms, MORE: taken.deliveries[0].at_ms}
    assert {record.topic: record.at_ms for record in taken.records} == told
    assert {record.at_ms for record in bench.reader().scan(INPUTS)} == {appended.at_ms}
    assert all(abs(at_ms - clock_ms()) < 60_000 for at_ms in told.values())


def test_a_record_comes_as_it_was_written(bench: Bench) -> None:
    log = bench.log()
    log.append([outgoing(b"v", key=b"key"), outgoing(None, key=b"gone"), outgoing(b"", key=b"")])

    records = take_until(log, lambda taken: len(taken.records) == 3).records

    assert [(r.topic, r.partition, r.offset, r.key, r.value) for r in records] == [
        (INPUTS, 0, 0, b"key", b"v"),
        (INPUTS, 0, 1, b"gone", None),
        (INPUTS, 0, 2, b"", b""),
    ]
    assert [*(records[0].read_headers() or ())] == [("ce_id", b"1"), ("traceparent", b"00-1")]


def test_records_of_a_partition_come_in_order_whatever_the_limit(bench: Bench) -> None:
    log = bench.log()
    log.append([outgoing(b"%d" % i, partition=i % 2) for i in range(100)])

    taken = take_until(log, lambda taken: len(taken.records) == 100, limit=7)

    for number in range(PARTITIONS):
        assert values(taken.records, partition=number) == [b"%d" % i for i in range(number, 100, 2)]


def test_a_take_gives_no_more_than_its_limit(bench: Bench) -> None:
    log = bench.log()
    log.append([outgoing(b"%d" % i) for i in range(20)])

    sizes = [0]

    def all_there(taken: Taken) -> bool:
        sizes.append(len(taken.records))
        return sizes[-1] == 20

    take_until(log, all_there, limit=3)

    assert max(after - before for before, after in pairwise(sizes)) == 3


def test_what_is_published_is_reported_by_a_later_take(bench: Bench) -> None:
    log = bench.log()

    log.publish([outgoing(b"1", token=1), outgoing(b"2", topic=CHAIN, partition=1, token=2)])
    taken = take_until(log, lambda taken: len(taken.deliveries) == 2)

    assert places(taken.deliveries) == [(1, 0), (2, 0)]


def test_a_record_that_is_too_large_is_never_written_and_the_others_are(bench: Bench) -> None:
    log = bench.log()

    deliveries = log.append(
        [outgoing(b"1", token=1), outgoing(b"x" * (MAX_BYTES + 1), token=2), outgoing(b"2", token=3)]
    )
    log.publish([outgoing(b"x" * (MAX_BYTES + 1), token=4)])
    taken = take_until(log, lambda taken: taken.deliveries and len(taken.records) == 2)

    assert places(deliveries) == [(1, 0), (2, NEVER), (3, 1)]
    assert places(taken.deliveries) == [(4, NEVER)]
    assert values(taken.records) == [b"1", b"2"]


def test_a_restarted_member_resumes_at_its_commits_and_replays_from_the_start(bench: Bench) -> None:
    log = bench.log()
    log.append([outgoing(b"%d" % i, topic=topic) for topic in (INPUTS, MORE, CHAIN) for i in range(3)])
    take_until(log, lambda taken: len(taken.records) == 9)
    log.commit({(INPUTS, 0): 2, (MORE, 0): 1, (CHAIN, 0): 3})
    log.take(1, 0.01)
    log.close()

    taken = take_until(bench.log(), lambda taken: len(taken.records) == 6)

    empty, full = dict.fromkeys(TOPICS, 0), dict.fromkeys(TOPICS, 3)
    assert assigned(taken)[0] == Assigned(0, {INPUTS: 2, MORE: 1, CHAIN: 3}, empty, full)
    assert assigned(taken)[1] == Assigned(1, {}, empty, empty)
    assert values(taken.records, INPUTS) == [b"2"]
    assert values(taken.records, MORE) == [b"1", b"2"]
    assert values(taken.records, CHAIN) == [b"0", b"1", b"2"]


def test_a_commit_survives_a_close_that_follows_at_once(bench: Bench) -> None:
    log = bench.log()
    log.append([outgoing(b"1"), outgoing(b"2")])
    take_until(log, lambda taken: len(taken.records) == 2)

    log.commit({(INPUTS, 0): 1})
    log.close()

    assert assigned(start(bench.log()))[0].committed == {INPUTS: 1}


def test_the_end_of_a_replay_is_reached_once_with_the_records_before_it(bench: Bench) -> None:
    first = bench.log()
    first.append([outgoing(b"%d" % i, topic=CHAIN, partition=1) for i in range(5)])
    first.close()
    log = bench.log()

    taken = take_until(log, lambda taken: len(chains(taken)) == PARTITIONS and len(taken.records) == 5)

    assert assigned(taken)[1].ends == {INPUTS: 0, MORE: 0, CHAIN: 5}
    assert sorted(chains(taken)) == [Reached(CHAIN, 0, 0), Reached(CHAIN, 1, 5)]
    log.append([outgoing(b"5", topic=CHAIN, partition=1)])
    assert take_until(log, lambda taken: taken.records).reached == []


def test_the_end_of_a_replay_is_reached_though_the_last_records_are_gone(bench: Bench) -> None:
    first = bench.log()
    first.append([outgoing(b"1", topic=CHAIN)])
    bench.leave_a_hole(CHAIN, 0)
    first.close()

    taken = take_until(bench.log(), lambda taken: Reached(CHAIN, 0, 3) in taken.reached)

    assert assigned(taken)[0].ends[CHAIN] == 3
    assert values(taken.records, CHAIN) == [b"1"]


def test_a_hole_that_comes_later_is_reached_too(bench: Bench) -> None:
    log = bench.log()
    take_until(log, lambda taken: len(chains(taken)) == PARTITIONS)

    bench.leave_a_hole(CHAIN, 1)

    assert Reached(CHAIN, 1, 2) in take_until(log, lambda taken: Reached(CHAIN, 1, 2) in taken.reached).reached
    assert log.end(CHAIN, 1) == 2


def test_anybody_may_ask_what_a_group_has_committed(bench: Bench) -> None:
    log = bench.log()
    log.append([outgoing(b"1"), outgoing(b"2"), outgoing(b"3", topic=MORE, partition=1)])
    take_until(log, lambda taken: len(taken.records) == 3)
    log.commit({(INPUTS, 0): 1, (MORE, 1): 1})
    log.take(1, 0.01)

    eventually(lambda: log.committed("group", INPUTS) == {0: 1}, what="the commit")
    assert log.committed("group", MORE) == {1: 1}
    assert log.committed("nobody's", INPUTS) == {}


def test_the_end_is_where_the_next_record_will_lie(bench: Bench) -> None:
    log = bench.log()

    before = log.end(MORE, 1)
    log.append([outgoing(b"1", topic=MORE, partition=1), outgoing(b"2", topic=MORE, partition=1)])

    assert (before, log.end(MORE, 1), log.end(MORE, 0)) == (0, 2, 0)


def test_a_paused_partition_gives_nothing_until_it_is_resumed(bench: Bench) -> None:
    log = bench.log()
    start(log)
    log.pause(INPUTS, 0)
    log.take(1, 0.01)
    log.append([outgoing(b"held"), outgoing(b"other", partition=1), outgoing(b"more", topic=MORE)])

    while_paused = take_until(log, lambda taken: len(taken.records) == 2)
    log.resume(INPUTS, 0)
    after = take_until(log, lambda taken: taken.records)

    assert sorted(r.value or b"" for r in while_paused.records) == [b"more", b"other"]
    assert values(after.records) == [b"held"]


def test_a_pause_holds_wherever_is_read_meanwhile_and_ends_with_its_assignment(bench: Bench) -> None:
    log = bench.log()
    start(log)
    log.append([outgoing(b"held"), outgoing(b"more", topic=MORE)])
    take_until(log, lambda taken: len(taken.records) == 2)

    log.pause(INPUTS, 0)
    log.read(INPUTS, 0, 0)
    log.read(MORE, 0, 0)
    while_paused = take_until(log, lambda taken: taken.records)
    quiet = [log.take(10, 0.05).records for _ in range(5)]
    log.reopen(0)
    after = take_until(log, lambda taken: len(taken.records) == 2)

    assert ([record.value for record in while_paused.records], quiet) == ([b"more"], [[]] * 5)
    assert sorted(record.value or b"" for record in after.records) == [b"held", b"more"]


def test_nothing_is_read_before_its_reader_says_from_where(bench: Bench) -> None:
    log = bench.log()
    log.reads = False
    log.append([outgoing(b"%d" % i, topic=topic) for topic in TOPICS for i in range(4)])
    before = start(log)
    before.records += [record for _ in range(10) for record in log.take(10, 0.02).records]

    log.read(CHAIN, 0, 3)
    first = take_until(log, lambda taken: taken.records)
    log.read(CHAIN, 0, 1)
    again = take_until(log, lambda taken: len(taken.records) == 3)

    assert before.records == []
    assert (values(first.records, CHAIN), first.reached) == ([b"3"], [Reached(CHAIN, 0, 4)])
    assert values(again.records, CHAIN) == [b"1", b"2", b"3"]


def test_a_log_that_got_shorter_than_what_was_read_is_news(bench: Bench) -> None:
    log = bench.log()
    log.reads = False
    log.append([outgoing(b"%d" % i, topic=CHAIN) for i in range(3)])
    start(log)

    log.read(CHAIN, 0, 7)
    taken = take_until(log, lambda taken: taken.shrunk)
    log.read(CHAIN, 0, 2)
    after = take_until(log, lambda taken: taken.records)

    assert (taken.shrunk, taken.records) == ([Shrunk(CHAIN, 0, 3)], [])
    assert (values(after.records, CHAIN), after.shrunk) == ([b"2"], [])


def test_what_is_deleted_at_the_start_is_passed_over_and_told(bench: Bench) -> None:
    log = bench.log()
    log.reads = False
    log.append([outgoing(b"%d" % i, topic=CHAIN) for i in range(5)])
    bench.delete(CHAIN, 0, below=3)

    given = assigned(start(log))[0]
    log.read(CHAIN, 0, 1)
    taken = take_until(log, lambda taken: len(taken.records) == 2)

    assert (given.starts[CHAIN], given.ends[CHAIN]) == (3, 5)
    assert values(taken.records, CHAIN) == [b"3", b"4"]
    assert Reached(CHAIN, 0, 3) in taken.reached
    assert taken.shrunk == []


def test_an_unknown_topic_is_an_error_that_says_what_to_do(bench: Bench) -> None:
    with pytest.raises(UsageError, match="refold topics apply"):
        bench.log().append([outgoing(b"1", partition=PARTITIONS)])
    with pytest.raises(UsageError, match="refold topics apply"):
        take_until(bench.log("b", topics=("nowhere",)), lambda _: False)


def test_other_threads_may_write_and_steer_while_one_takes(bench: Bench) -> None:
    log = bench.log()
    start(log)
    stop = threading.Event()
    whole = Taken()

    def take() -> None:
        while not stop.is_set():
            taken = log.take(100, 5.0)
            whole.records += taken.records
            whole.deliveries += taken.deliveries
            if len(whole.records) == 300:
                stop.set()

    taking = threading.Thread(target=take)
    taking.start()
    for i in range(100):
        log.append([outgoing(b"%d" % i, token=i)])
        log.publish([outgoing(b"p%d" % i, partition=1, token=1000 + i), outgoing(b"m", topic=MORE, token=2000 + i)])
        log.pause(MORE, 0)
        log.resume(MORE, 0)
        log.commit({(INPUTS, 0): i + 1})
        assert log.end(INPUTS, 0) == i + 1
    taking.join(timeout=60)

    assert stop.is_set(), f"only {len(whole.records)} records and {len(whole.deliveries)} deliveries came"
    assert values(whole.records, INPUTS, 0) == [b"%d" % i for i in range(100)]
