"""The contract of `refold.engine.ports.log`: who has which partition, and what becomes of it when that changes."""

from __future__ import annotations

import pytest

from refold.core.errors import ConflictError, RefoldError
from refold.engine.ports.log import Assigned, Revoked
from tests.contract.log_benches import (
    CHAIN,
    INPUTS,
    TOPICS,
    Bench,
    assigned,
    assigned_as,
    outgoing,
    share,
    start,
    take_until,
    values,
)
from tests.waiting import eventually, under_load


def test_what_was_meant_for_an_earlier_assignment_is_dropped(bench: Bench) -> None:
    log = bench.log()
    first = assigned_as(start(log))
    log.append([outgoing(b"%d" % i) for i in range(3)])
    take_until(log, lambda taken: len(taken.records) == 3)
    log.reads = False
    log.reopen(0)
    second = assigned_as(take_until(log, lambda taken: assigned(taken)))

    log.read(INPUTS, 0, 2, under=first)
    quiet = [log.take(10, 0.05).records for _ in range(5)]
    log.read(INPUTS, 0, 1, under=second)
    log.pause(INPUTS, 0, under=first)
    taken = take_until(log, lambda taken: len(taken.records) == 2)

    assert quiet == [[]] * 5
    assert values(taken.records) == [b"1", b"2"]


def test_a_second_member_takes_its_share_of_every_topic_and_the_first_reads_on(bench: Bench) -> None:
    one = bench.log("a")
    start(one)
    one.append([outgoing(b"%d" % n, topic=topic, partition=n) for topic in TOPICS for n in range(2)])
    take_until(one, lambda taken: len(taken.records) == 6)

    two = bench.log("b")
    seen = share(one, two)
    one.append([outgoing(b"more", topic=topic, partition=n) for topic in TOPICS for n in range(2)])
    seen[0].records += take_until(one, lambda taken: len(taken.records) == 3).records
    seen[1].records += take_until(two, lambda taken: len(seen[1].records) + len(taken.records) == 6).records

    assert seen[0].rebalances == [Revoked(1)]
    assert list(assigned(seen[1])) == [1]
    assert {(r.topic, r.partition, r.value) for r in seen[0].records} == {(topic, 0, b"more") for topic in TOPICS}
    assert {(r.topic, r.partition) for r in seen[1].records} == {(topic, 1) for topic in TOPICS}


@pytest.mark.long
def test_the_partitions_of_a_member_that_stays_away_go_to_the_others(bench: Bench) -> None:
    one, two = bench.log("a"), bench.log("b", keep_place=True)
    share(one, two)
    two.append([outgoing(b"left behind", partition=1)])

    bench.expire("b")
    taken = take_until(one, lambda taken: taken.records)

    assert list(assigned(taken)) == [1]
    assert values(taken.records) == [b"left behind"]


def test_the_partitions_of_a_member_that_leaves_are_the_others_at_once(bench: Bench) -> None:
    one, two = bench.log("a"), bench.log("b")
    share(one, two)

    two.close()
    taken = take_until(one, lambda taken: taken.rebalances, within=under_load(3))

    assert list(assigned(taken)) == [1]


def test_a_member_that_has_left_writes_on_and_is_told_that_nothing_is_its_own(bench: Bench) -> None:
    one, two = bench.log("a"), bench.log("b")
    share(one, two)
    two.append([outgoing(b"1", partition=1)])
    two.commit({(INPUTS, 1): 1})

    two.leave()
    gone = take_until(two, lambda taken: taken.rebalances, within=under_load(3))
    came = take_until(one, lambda taken: taken.rebalances, within=under_load(3))
    (written,) = two.append([outgoing(b"2", partition=1)])
    two.publish([outgoing(b"3", partition=1, token=7)])
    told = take_until(two, lambda taken: taken.deliveries)
    read = take_until(one, lambda taken: len(taken.records) == 2)
    after = [two.take(10, 0.05) for _ in range(10)]
    two.close()

    assert gone.rebalances == [Revoked(1)]
    assert assigned(came)[1].committed.get(INPUTS) == 1
    assert written.offset == 1
    assert [each.token for each in told.deliveries] == [7]
    assert values(read.records) == [b"2", b"3"]
    assert not [each for each in after if each.rebalances or each.records]


def test_a_member_that_keeps_its_place_does_not_leave(bench: Bench) -> None:
    one, two = bench.log("a"), bench.log("b", keep_place=True)
    share(one, two)

    two.leave()
    after = [log.take(10, 0.05) for _ in range(10) for log in (one, two)]

    assert not [each for each in after if each.rebalances]


def test_a_member_that_keeps_its_place_is_back_without_a_rebalance(bench: Bench) -> None:
    one, two = bench.log("a"), bench.log("b", keep_place=True)
    share(one, two)

    two.close()
    back = bench.log("b")
    taken = start(back, 1)
    after = [one.take(10, 0.05) for _ in range(20)]

    assert list(assigned(taken)) == [1]
    assert [each.rebalances for each in after if each.rebalances] == []


@pytest.mark.parametrize(("before", "after"), [((INPUTS,), TOPICS), (TOPICS, (INPUTS,))], ids=["more", "fewer"])
def test_a_member_that_is_back_with_other_topics_has_those(
    bench: Bench, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    first = bench.log(topics=before, keep_place=True)
    start(first, 2)
    first.close()

    taken = start(bench.log(topics=after), 2)

    assert {number: set(each.ends) for number, each in assigned(taken).items()} == {0: set(after), 1: set(after)}


def test_a_partition_of_another_member_cannot_be_read(bench: Bench) -> None:
    one, two = bench.log("a"), bench.log("b")
    share(one, two)
    two.append([outgoing(b"1", partition=n) for n in range(2)])

    one.read(INPUTS, 1, 0)
    taken = take_until(one, lambda taken: taken.records)
    taken.records += [record for _ in range(10) for record in one.take(10, 0.02).records]

    assert {record.partition for record in taken.records} == {0}


def test_a_commit_that_comes_during_a_rebalance_is_made_after_it(bench: Bench) -> None:
    one = bench.log("a")
    start(one)
    one.append([outgoing(b"1", partition=n) for n in range(2)])
    two = bench.log("b")
    two.take(1, 0.3)  # it asks to be let in, and one has not heard of it

    for _ in range(10):
        one.commit({(INPUTS, 0): 1})
        one.take(10, 0.05)
        two.take(10, 0.05)

    eventually(lambda: (one.take(1, 0.01), one.committed("group", INPUTS))[1] == {0: 1}, what="the commit")


def test_a_partition_that_moves_away_and_back_is_assigned_anew(bench: Bench) -> None:
    one = bench.log("a")
    start(one)
    two = bench.log("b")
    seen = share(one, two)
    two.close()
    taken = take_until(one, lambda taken: taken.rebalances)
    one.append([outgoing(b"1", partition=1)])

    assert seen[0].rebalances == [Revoked(1)]
    assert list(assigned(taken)) == [1]
    assert values(take_until(one, lambda taken: taken.records).records, partition=1) == [b"1"]


def test_a_partition_that_is_to_begin_anew_goes_and_comes_as_it_is_by_then(bench: Bench) -> None:
    log = bench.log()
    start(log)
    log.append([outgoing(b"%d" % i, topic=CHAIN) for i in range(3)])
    take_until(log, lambda taken: len(taken.records) == 3)

    log.reopen(0)
    taken = take_until(log, lambda taken: len(taken.records) == 3)

    assert [type(change) for change in taken.rebalances] == [Revoked, Assigned]
    assert assigned(taken)[0].ends[CHAIN] == 3
    assert values(taken.records, CHAIN) == [b"0", b"1", b"2"]


def test_a_successor_of_the_same_name_has_everything_at_once_and_fences_its_predecessor(bench: Bench) -> None:
    old = bench.log()
    old.append([outgoing(b"1"), outgoing(b"2")])
    take_until(old, lambda taken: len(taken.records) == 2)

    new = bench.log()
    taken = take_until(new, lambda taken: len(taken.records) == 2, within=under_load(5))
    new.commit({(INPUTS, 0): 1})
    with pytest.raises(ConflictError, match="own"):
        take_until(old, lambda _: False)
    old.commit({(INPUTS, 0): 2})
    with pytest.raises(RefoldError):
        old.take(1, 0.1)
    new.take(1, 0.01)
    new.close()

    assert len(assigned(taken)) == 2
    assert assigned(start(bench.log()))[0].committed == {INPUTS: 1}


def test_a_commit_for_a_partition_of_another_member_is_dropped(bench: Bench) -> None:
    one, two = bench.log("a"), bench.log("b")
    share(one, two)
    one.append([outgoing(b"1", partition=n) for n in range(2)])

    one.commit({(INPUTS, 0): 1, (INPUTS, 1): 1})
    one.take(1, 0.01)
    one.close()
    two.close()

    assert {n: found.committed for n, found in assigned(start(bench.log())).items()} == {0: {INPUTS: 1}, 1: {}}
