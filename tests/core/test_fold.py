"""The fold and `decide` together, over random histories: what must hold whatever comes in which order."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refold.core.errors import FoldError
from refold.core.events import (
    CallCompleted,
    Entry,
    Failure,
    LateResultRecorded,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRetried,
    RunStarted,
    SleepStarted,
)
from refold.core.ids import NO_ENTRY, EntryId
from refold.core.planning.commands import commands
from refold.core.planning.decide import decide
from refold.core.planning.verdict import Ignore, Refuse
from refold.core.run import chain
from refold.core.run.chain import Head
from refold.core.run.fold import apply, evolve, fold, kinds
from refold.core.run.state import WAITING, RunState
from tests.core.histories import (
    NOW,
    RULES,
    RUN,
    Log,
    calling,
    examples,
    random_input,
    random_log,
    random_reaction,
    read_fold,
    started,
)

seeds = st.integers(0, 2**32)


def test_random_histories_reach_every_kind_of_event() -> None:
    entries = [entry for seed in range(120) for _, entry in random_log(seed).entries]

    assert {type(event) for entry in entries for event in entry.events} == kinds()


@examples
@given(seeds, st.integers(0, 2**40))
def test_a_history_folds_to_one_state_however_it_is_split(seed: int, cut: int) -> None:
    log = random_log(seed)
    whole = fold(log.entries, RUN)

    state = None
    for n, (name, entry) in enumerate(log.entries):
        state = evolve(state, entry, name) if cut >> n & 1 or state is None else apply(state.copy(), entry, name)

    assert state is not None
    assert state.digest() == whole.digest() == log.live.digest() == read_fold(log.records).digest()


@examples
@given(seeds)
def test_evolve_leaves_its_argument_alone(seed: int) -> None:
    state = None
    for name, entry in random_log(seed).entries:
        before = state.digest() if state else None

        after = evolve(state, entry, name)

        assert (state.digest() if state else None) == before
        assert after.digest() != before
        state = after


@examples
@given(seeds)
def test_void_records_never_change_a_fold(seed: int) -> None:
    rng, log = random.Random(seed), random_log(seed)
    rival = random_log(seed + 1, writer=1).records
    mixed: list[tuple[bytes | None, bytes | None]] = []
    for record in log.records:
        key, value = record
        noise = [rng.choice(rival[1:] or [record]), rng.choice(mixed or [record]), (key, None), (None, value)]
        mixed += [record, *rng.sample(noise, rng.randint(0, 3)), (key, value[:-1]), (key[:-1] + b"x", value)]

    state = RunState(RUN)
    for key_, value_ in mixed:
        judged = chain.read(key_, value_)
        if isinstance(judged, chain.LogRecord) and chain.extends(state.head, judged.entry):
            apply(state, judged.entry, judged.id)

    assert state.digest() == log.live.digest()


@examples
@given(seeds)
def test_an_input_that_comes_twice_changes_nothing_the_second_time(seed: int) -> None:
    rng, log = random.Random(seed), Log()
    for _ in range(40):
        log.now += rng.choice([1, 500, 60_000])
        what = random_input(log, rng)
        if isinstance(log.feed(what), list):
            again = decide(log.state, what, log.now, RULES)

            dropped = isinstance(again, Refuse) and again.code == "no_room"
            assert isinstance(again, Ignore) or dropped, f"{what} caused {again}"
        random_reaction(log, rng)


@examples
@given(seeds)
@example(295)  # which asks for a retry
def test_nothing_is_decided_after_a_terminal_event(seed: int) -> None:
    rng, log = random.Random(seed), random_log(seed)
    if not log.live.over:
        log.append([RunCancelled("", "ann")])
    for _ in range(20):
        ruling = decide(log.live, random_input(log, rng), log.now + 10**9, RULES)
        assert not isinstance(ruling, list) or isinstance(ruling[0], RunRetried), "a retry alone follows an end"


@examples
@given(seeds)
def test_commands_are_a_function_of_the_history(seed: int) -> None:
    log = random_log(seed)
    live, replayed = None, RunState(RUN)
    for offset, (name, entry) in enumerate(log.entries):
        live = evolve(live, entry, name)
        apply(replayed, entry, name)

        assert commands(live, entry, offset) == commands(replayed, entry, offset)


@examples
@given(seeds)
def test_events_are_numbered_densely_and_the_head_is_the_last(seed: int) -> None:
    log = random_log(seed)
    seq = 0
    for _, entry in log.entries:
        assert entry.seq == seq + 1
        seq = entry.last_seq

    assert log.live.head == Head(log.entries[-1][0], seq)


@examples
@given(seeds)
def test_of_two_entries_with_the_same_prev_only_the_first_counts(seed: int) -> None:
    log = random_log(seed, inputs=10)
    if log.live.over:
        return
    step = len(log.live.steps) + 1
    _, _, winner = log.write([SleepStarted(step, 1)], nonce=100)
    _, _, loser = log.write([SleepStarted(step, 2)], nonce=101)
    _, _, twin = log.write([SleepStarted(step, 1)], nonce=102)

    one = read_fold([*log.records, winner, loser, twin])
    other = read_fold([*log.records, loser, winner, twin])

    assert one.digest() == read_fold([*log.records, winner]).digest()
    assert other.digest() == read_fold([*log.records, loser]).digest()
    assert one.digest() != other.digest()


def test_an_entry_after_the_end_stops_the_fold() -> None:
    log = started()
    log.append([RunCompleted("null")])

    with pytest.raises(FoldError, match="after its end"):
        log.append([RunStarted()])


def test_an_unknown_event_stops_the_fold() -> None:
    class PartyHeld:
        pass

    entry = Entry(RUN, 1, NO_ENTRY, NOW, None, "", b"", [PartyHeld()])  # type: ignore[list-item]

    with pytest.raises(FoldError, match="PartyHeld is not an event of a run"):
        evolve(None, entry, EntryId(b"1"))


@pytest.mark.parametrize(
    "event", [CallCompleted(7, 1, "null"), SleepStarted(7, 1), CallCompleted(0, 1, ""), CallCompleted(-1, 1, "")]
)
def test_an_event_about_a_step_that_is_not_there_stops_the_fold(event: CallCompleted | SleepStarted) -> None:
    log = calling()

    with pytest.raises(FoldError):
        log.append([event])


def test_a_run_that_only_waits_is_suspended() -> None:
    log, statuses = started(), []

    log.append([SleepStarted(1, NOW + 1)])
    statuses.append(log.live.status)
    step = log.propose()
    statuses.append(log.live.status)
    log.feed(log.result(step, "doubt"))
    statuses.append(log.live.status)

    assert statuses == ["suspended", "running", "suspended"]


def test_a_late_result_is_remembered_by_its_step() -> None:
    log = calling()
    late = LateResultRecorded(1, 1, "completed", "1", contradicts=True)

    log.append([late])

    assert dict(log.live.late) == {1: (late,)}


def test_what_becomes_of_a_state_leaves_it_as_it_was() -> None:
    log = calling()
    before, digest = log.live, log.live.digest()
    (name, entry, _), (rival, other, _) = (
        log.write([CallCompleted(1, 1, result), SleepStarted(2, 9)], nonce=nonce)
        for nonce, result in ((7, "1"), (8, "2"))
    )

    one, two = evolve(before, entry, name), evolve(before, other, rival)
    one, two = (evolve(state, *_nap(state)) for state in (one, two))

    assert before.digest() == digest
    assert [[step.step for step in state.steps] for state in (before, one, two)] == [[1], [1, 2, 3], [1, 2, 3]]
    assert [state.outcomes[1][1].result for state in (one, two)] == ["1", "2"]
    assert one.entry_at(entry.seq) == name
    assert two.entry_at(entry.seq) == rival
    assert before.entry_at(entry.seq) is None


def _nap(state: RunState) -> tuple[Entry, EntryId]:
    entry = Entry(RUN, state.head.seq + 1, state.head.id, NOW, None, "", b"", [SleepStarted(3, 9)])
    return entry, EntryId(b"3")


@examples
@given(seeds)
def test_every_entry_is_found_by_the_seq_of_its_first_event_and_every_call_by_its_own(seed: int) -> None:
    log = random_log(seed)
    begins = {entry.seq: name for name, entry in log.entries}

    assert {seq: log.live.entry_at(seq) for seq in begins} == begins
    assert all(log.live.entry_at(seq) is None for seq in range(log.live.head.seq + 3) if seq not in begins)
    assert [log.live.step_of(seq) for seq in log.live.seqs] == list(range(1, len(log.live.steps) + 1))
    assert log.live.busy == sum(opened.phase not in WAITING for opened in log.live.open.values())


def test_a_history_that_begins_without_a_request_stops_the_fold() -> None:
    entry = Entry(RUN, 1, b"", NOW, None, "p", b"n", [RunStarted("1")])

    with pytest.raises(FoldError, match="begins without a request"):
        evolve(None, entry, EntryId(b"x" * 16))


def test_a_run_whose_request_is_too_large_for_the_log_is_its_failure_alone_and_never_goes_on() -> None:
    failed = RunFailed(Failure("too_large", "an entry is over its limit"))
    alone = Entry(RUN, 1, b"", NOW, None, "p", b"n", [failed])
    again = Entry(RUN, 2, b"x" * 16, NOW, None, "p", b"n", [RunRetried("op", ""), failed])

    state = evolve(None, alone, EntryId(b"x" * 16))

    assert (state.status, state.head.seq) == ("failed", 1)
    with pytest.raises(FoldError, match="contradicts its history"):
        evolve(state, again, EntryId(b"y" * 16))
