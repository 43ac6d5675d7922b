"""Which record counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core.events import LAST_MS, Entry, RunCompleted, RunRequested, SleepEnded
from refold.core.ids import NO_ENTRY, RunId, entry_id, log_key
from refold.core.run import chain
from refold.core.run.chain import Head, LogRecord, Unreadable
from refold.core.run.finished import Finished, run_digest, times_of
from refold.core.run.log import LogFold
from refold.core.wire import codec
from tests.core.histories import NOW, RUN, started


def record(entry: Entry) -> tuple[bytes, bytes]:
    name, value = codec.encode_entry(entry)
    return log_key(entry.run_id, entry.seq, name), value


FIRST = Entry(RUN, 1, NO_ENTRY, NOW, None, "p", b"n", [SleepEnded(1), RunCompleted("1")])


def test_a_record_that_is_what_its_key_says_is_read() -> None:
    name, _ = codec.encode_entry(FIRST)

    assert chain.read(*record(FIRST)) == LogRecord(name, FIRST)


def test_the_first_entry_extends_nothing_and_the_next_extends_the_first() -> None:
    name, _ = codec.encode_entry(FIRST)
    head = Head(name, FIRST.last_seq)
    following = Entry(RUN, 3, name, NOW, None, "p", b"n", [SleepEnded(2)])

    assert chain.extends(Head(), FIRST)
    assert chain.extends(head, following)
    assert not chain.extends(head, FIRST)
    assert not chain.extends(Head(), following)


@pytest.mark.parametrize(("seq", "prev"), [(2, b"right"), (4, b"right"), (3, b"wrong"), (3, NO_ENTRY), (1, NO_ENTRY)])
def test_an_entry_with_another_prev_or_a_gap_is_void(seq: int, prev: bytes) -> None:
    head = Head(entry_id(b"right"), 2)
    entry = Entry(RUN, seq, entry_id(prev) if prev else prev, NOW, None, "p", b"n", [SleepEnded(1)])

    assert not chain.extends(head, entry)


def test_keys_that_are_none_are_void() -> None:
    key, value = record(FIRST)

    assert chain.read(None, value) == "key"
    assert chain.read(key.replace(b"/", b"."), value) == "key"
    assert chain.read(key.upper(), value) == "key"


def test_a_tombstone_is_one() -> None:
    assert chain.read(record(FIRST)[0], None) == "tombstone"


def test_bytes_that_are_not_those_of_the_id_are_void() -> None:
    key, value = record(FIRST)

    for wrong in (b"", b"\0\0\0\0", value[:-1], value + b"\0", b"\1" + value[1:], value[:-1] + b"\xff"):
        assert chain.read(key, wrong) == "hash"


def test_an_entry_under_the_key_of_another_run_or_seq_is_void() -> None:
    name, value = codec.encode_entry(FIRST)

    assert chain.read(log_key("run-2", 1, name), value) == "body"
    assert chain.read(log_key(RUN, 2, name), value) == "body"


def test_an_entry_without_events_is_void() -> None:
    assert chain.read(*record(Entry(RUN, 1, NO_ENTRY, NOW, None, "p", b"n", []))) == "body"


@pytest.mark.parametrize("at_ms", [0, -1, -(2**63), LAST_MS + 1, 2**53, 2**63 - 1])
def test_an_entry_with_a_time_that_no_log_has_is_void(at_ms: int) -> None:
    assert chain.read(*record(replace(FIRST, at_ms=at_ms))) == "time"


@pytest.mark.parametrize("at_ms", [1, NOW, LAST_MS])
def test_the_state_after_any_time_that_counts_is_kept_as_a_row(at_ms: int) -> None:
    entry = replace(FIRST, at_ms=at_ms, events=[RunRequested("a", "{}", "", "s"), RunCompleted("1")])
    key, value = record(entry)
    judged = LogFold().feed(key, value)

    assert judged.state is not None
    assert times_of(Finished().add(judged.state)) == {run_digest(RUN): min(at_ms // 1_000, 2**32 - 1) * 1_000}


def test_what_is_not_avro_is_void_though_its_id_is_right() -> None:
    body = b"\xff" * 40

    assert chain.read(log_key(RUN, 1, entry_id(body)), b"\0\0\0\0\1" + body) == "body"


def test_an_entry_of_tomorrow_stops_its_run() -> None:
    body = b"whatever will be"

    judged = chain.read(log_key(RUN, 1, entry_id(body)), b"\0\0\0\x03\xe7" + body)

    assert judged == Unreadable(RunId(RUN), "schema id 999 is not a schema of run-log")


def test_the_same_events_sent_twice_are_two_records() -> None:
    log = started()

    first, _, _ = log.write([SleepEnded(1)], nonce=1)
    second, _, _ = log.write([SleepEnded(1)], nonce=2)

    assert first != second
