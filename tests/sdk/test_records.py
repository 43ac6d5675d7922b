"""Sources: what a record of another topic is mapped to, and under which ids."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import App, Context, NewRun, NewSignal, RefoldError, SourceRecord, UsageError
from refold.core.ids import run_id
from refold.core.messages import RunRequest, RunSignal

app = App("shop")
AT = datetime(2030, 1, 31, tzinfo=UTC)


@app.agent
async def fulfil(ctx: Context, order: int) -> int:
    return order


def record(value: bytes | None = b'{"n": 7}', key: bytes = b"o-7", topic: str = "orders") -> SourceRecord:
    return SourceRecord(topic, 2, 17, key, value, [], AT)


def mapped(function: Callable[[SourceRecord], Any], given: SourceRecord, **options: Any) -> list[Any]:
    own = App("one")
    own.agent(fulfil)
    own.source(given.topic, group="g", **options)(function)
    return own.sources[given.topic].inputs(given)


def test_a_record_starts_a_run_under_its_own_id() -> None:
    inputs = mapped(lambda found: NewRun(fulfil, {"order": found.value["n"]}, labels={"of": found.key}), record())

    assert inputs == [RunRequest(run_id("orders:2:17"), "fulfil", '{"order":7}', labels={"of": "o-7"})]


def test_an_author_names_the_run_by_the_data() -> None:
    (request,) = mapped(lambda found: NewRun("fulfil", {"order": 1}, id=f"order-{found.key}"), record())

    assert request.run_id == "order-o-7"


def test_a_signal_follows_the_request_of_its_run() -> None:
    start = NewRun(fulfil, {"order": 7})
    request, signal = mapped(lambda found: NewSignal("o-7", "paid", found.value, start=start), record())

    assert (request.run_id, request.agent) == ("o-7", "fulfil")
    assert signal == RunSignal(run_id("o-7"), "orders:2:17", "signal", '{"n":7}', name="paid")


def test_none_is_no_input_and_a_tombstone_has_no_value() -> None:
    seen: list[Any] = []

    assert mapped(lambda found: seen.append((found.key, found.value)), record(None)) == []
    assert seen == [("o-7", None)]


def test_bytes_stay_as_they_are() -> None:
    seen: list[Any] = []
    mapped(lambda found: seen.append((found.key, found.value)), record(b"\xff", key=b"\xfe"), value="bytes")

    assert seen == [(b"\xfe", b"\xff")]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (NewRun("fulfill", {"order": 1}), "no agent fulfill"),
        (NewRun(fulfil, {"order": "no number"}), "input of agent fulfil"),
        (NewRun(fulfil, {"order": 1}, id="a/b"), "not a run id"),
        (NewRun(fulfil, {"order": 1}, id="a.1"), "id of a child"),
        (NewRun(fulfil, {"order": 1}, id="a+2"), "id of a child or a generation"),
        (NewSignal("a b", "paid"), "not a run id"),
        (NewSignal("a", "no name"), "not a name"),
        (NewSignal("a", "paid", object()), "no JSON form"),
        (NewSignal("a", "paid", start=NewRun(fulfil, {"order": 1}, id="b")), "starts b"),
        ({"run": "a"}, "dict is no input"),
    ],
)
def test_an_invalid_result_is_refused(result: Any, said: str) -> None:
    with pytest.raises(RefoldError, match=said):
        mapped(lambda found: result, record())


@pytest.mark.parametrize("value", [b"", b"{", b'{"a": 1, "a": 2}', b"NaN", b"\xff"])
def test_a_value_is_strict_json(value: bytes) -> None:
    with pytest.raises(RefoldError):
        mapped(lambda found: None, record(value))


def test_a_topic_has_one_source() -> None:
    own = App("one")
    own.source("orders", group="a")(lambda found: None)

    with pytest.raises(UsageError, match="two sources of orders"):
        own.source("orders", group="b")(lambda found: None)


TOPICS = st.text("abAB019._-", min_size=1, max_size=249)


@given(topic=TOPICS)
def test_the_id_of_every_record_is_a_run_id(topic: str) -> None:
    last = replace(record(topic=topic), partition=2**31 - 1, offset=2**63 - 1)

    assert run_id(last.id) == last.id


@given(one=TOPICS, other=TOPICS)
def test_no_two_topics_share_an_id(one: str, other: str) -> None:
    assert (record(topic=one).id == record(topic=other).id) == (one == other)


def test_no_two_short_topics_share_an_id() -> None:
    topics = ["".join(letters) for size in (1, 2, 3, 4) for letters in product("a._-1", repeat=size)]

    assert len({record(topic=topic).id for topic in topics}) == len(topics)
    assert len({record(topic=f"{'a' * 80}{topic}{'b' * 80}").id for topic in topics}) == len(topics)
    assert all(re.fullmatch(r"[^.]+:2:17", record(topic=topic).id) for topic in topics)


def test_the_value_of_a_json_source_keeps_its_numbers() -> None:
    seen: list[Any] = []
    mapped(lambda found: seen.append(found.value), record(json.dumps(2**63 + 1).encode()))

    assert seen == [2**63 + 1]
