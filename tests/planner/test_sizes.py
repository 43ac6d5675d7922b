"""What is too large: one limit for the whole path, and an answer of its own where the log does not take a record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.events import CallFailed, RunFailed
from refold.core.ids import parse_log_key
from refold.core.messages import RunRequest
from refold.core.topics import RUN_COMPLETED, RUN_LOG, RUN_SNAPSHOT, tool_completed
from refold.core.wire import canonical, codec
from tests.planner.clocked import REQUESTS, Rig

LIMIT = 4_000


def one_call(agent: str = "looking", **how: object) -> Rig:
    """A run whose only call is with the executors."""
    rig = Rig(payload_bytes=LIMIT, **how)  # type: ignore[arg-type]
    rig.start("r", agent, {"what": "it"})
    return rig.run(10)


@given(st.sampled_from(["x", "é", "字", "\n", '"', "😀"]), st.integers(0, 3))
def test_any_result_that_executors_let_pass_is_decided_upon(char: str, below: int) -> None:
    rig = one_call()
    each = canonical.utf8_bytes(canonical.dumps(char)) - 2
    result = canonical.dumps(char * ((LIMIT - 2) // each - below))
    assert canonical.utf8_bytes(result) <= LIMIT

    [request] = rig.take()
    rig.answer(request, result=result)
    rig.run(10)

    assert rig.kinds("r")[-2:] == ["CallCompleted", "RunCompleted"]
    assert rig.letters() == []


@pytest.mark.parametrize(
    ("agent", "ending"), [("looking", ["CallFailed", "RunFailed"]), ("paying", ["CallDoubted", "RunSuspended"])]
)
@pytest.mark.parametrize(("value", "code"), [(b"x" * 100_000, "too_large"), (b"\0nonsense", "unreadable")])
def test_a_result_that_nobody_can_read_settles_its_call(agent: str, ending: list[str], value: bytes, code: str) -> None:
    rig = one_call(agent)

    [request] = rig.take()
    rig.write(tool_completed("default"), request.call_id, value)
    rig.run(10)

    assert rig.kinds("r")[-len(ending) :] == ending
    assert [letter.code for letter in rig.letters()] == ["malformed"]
    [settled] = [event for event in rig.history("r")[1] if type(event).__name__ == ending[0]]
    assert settled.failure.code == code  # type: ignore[union-attr]


def test_an_input_over_the_limit_is_refused_where_it_comes_in() -> None:
    rig = Rig(payload_bytes=LIMIT)
    rig.start("large", "looking", {"what": "字" * (LIMIT // 3)})
    rig.start("fits", "looking", {"what": "字" * (LIMIT // 3 - 10)})

    rig.run(10)

    assert [letter.key for letter in rig.letters()] == [b"large"]
    assert rig.kinds("fits")[-1] == "CallDispatched"


@pytest.mark.parametrize(
    "fields",
    [
        {"agent": "x" * 257},
        {"requester": "é" * 257},
        {"labels": {str(number): "" for number in range(33)}},
        {"labels": {"note": "x" * 1_021}},
        {"labels": {"x" * 1_025: ""}},
    ],
)
def test_names_and_labels_of_any_length_are_refused_where_they_come_in(fields: dict[str, Any]) -> None:
    rig = Rig()
    request = {"run_id": "r", "agent": "looking", "input": {"what": "it"}}
    rig.write("run-requested", "r", json.dumps(request | fields).encode())
    rig.write("run-requested", "s", codec.encode(RunRequest("s", **{"agent": "looking"} | fields)))

    rig.run(10)

    assert [letter.code for letter in rig.letters()] == ["malformed"] * 2
    assert rig.kinds("r") == []


def test_the_longest_names_and_labels_are_taken() -> None:
    rig = Rig()
    labels = {f"{number:02}": "x" * 1_022 for number in range(32)}
    request = {"run_id": "r", "agent": "looking", "input": {"what": "it"}, "requester": "é" * 256, "labels": labels}
    rig.write("run-requested", "r", json.dumps(request).encode())

    rig.run(10)

    assert rig.letters() == []
    assert rig.kinds("r")[-1] == "CallDispatched"


@pytest.mark.parametrize("name", ["signal_id", "kind", "actor"])
def test_a_signal_with_a_name_of_any_length_is_refused(name: str) -> None:
    rig = one_call()
    signal = {"run_id": "r", "signal_id": "s", "kind": "cancel", "actor": "ann"} | {name: "x" * 257}
    rig.write("run-signalled", f"r/{signal['signal_id']}", json.dumps(signal).encode())

    rig.run(10)

    assert [letter.code for letter in rig.letters()] == ["malformed"]


def test_a_call_whose_request_the_log_does_not_take_fails() -> None:
    rig = one_call(refuses={REQUESTS: 100})

    _, events = rig.history("r")

    assert [type(event).__name__ for event in events[-2:]] == ["CallFailed", "RunFailed"]
    assert isinstance(events[-2], CallFailed)
    assert events[-2].failure.code == "too_large"
    assert "publish.refused" in rig.alarms


@pytest.mark.parametrize(("agent", "ending"), [("looking", ["RunFailed"]), ("paying", ["CallDoubted", "RunSuspended"])])
@pytest.mark.parametrize("how", ["asked again", "told by a successor", "answered by silence"])
def test_a_call_whose_request_went_out_before_it_was_refused_is_in_doubt(
    agent: str, ending: list[str], how: str
) -> None:
    rig = Rig(payload_bytes=LIMIT)
    if how == "answered by silence":
        rig.silent, rig.refuses[REQUESTS] = 1, 100
    rig.start("r", agent, {"what": "it"})
    rig.run(10)
    rig.take()
    rig.refuses[REQUESTS] = 100

    if how == "told by a successor":
        rig.successor()
    rig.run(10 if how != "asked again" else 300_000)

    assert rig.kinds("r")[-len(ending) :] == ending
    assert "publish.refused" in rig.alarms


def test_the_result_of_a_request_that_was_refused_later_ends_the_doubt() -> None:
    rig = one_call("paying")
    [request] = rig.take()
    rig.refuses[REQUESTS] = 100
    rig.successor()
    rig.run(10)
    before = rig.kinds("r")

    rig.answer(request)
    rig.run(10)

    assert before[-2:] == ["CallDoubted", "RunSuspended"]
    assert rig.kinds("r")[-2:] == ["CallCompleted", "RunCompleted"]


def test_an_outcome_that_the_log_does_not_take_is_told_without_its_result() -> None:
    rig = one_call(refuses={RUN_COMPLETED: 1_000})
    [request] = rig.take()
    rig.answer(request, result=canonical.dumps("x" * 2_000))

    rig.run(10)

    [told] = rig.outcomes()
    assert (told.status, told.result) == ("completed", "null")
    assert told.failure
    assert "refold run show r" in told.failure.message
    assert "publish.refused" in rig.alarms


def test_an_entry_that_the_log_does_not_take_fails_the_run() -> None:
    rig = one_call(refuses={RUN_LOG: 1_500})
    [request] = rig.take()
    rig.answer(request, result=canonical.dumps("x" * 2_000))

    rig.run(10)

    end = rig.history("r")[0].end
    assert isinstance(end, RunFailed)
    assert end.failure.code == "too_large"


def test_where_the_log_takes_no_entry_at_all_the_input_becomes_a_dead_letter() -> None:
    rig = one_call(refuses={RUN_LOG: 40})  # what tells the time has less

    assert rig.kinds("r") == []
    assert [letter.code for letter in rig.letters()] == ["too_large"]


@pytest.mark.parametrize(("limit", "letters"), [(3_000, 1), (10, 0)])
def test_a_dead_letter_that_the_log_does_not_take_is_shortened_and_alarmed(limit: int, letters: int) -> None:
    rig = Rig(payload_bytes=LIMIT, refuses={"dead-letter": limit})
    rig.write("run-requested", "r", b"x" * 4_000)

    rig.run(1_000)

    assert [len(letter.value) for letter in rig.letters()] == [1_000] * letters
    assert "publish.refused" in rig.alarms
    # An input whose dead letter the log takes is tombstoned; one that no letter tells of stays for people to find.
    assert rig.broker.groups["refold-planner"].committed["run-requested", 0] == 1 + letters


def test_a_call_with_too_long_arguments_fails_its_run_before_anything_is_sent() -> None:
    rig = Rig(payload_bytes=20_000)
    rig.start("fits", "swelling", {"letters": 9_900})
    rig.start("does-not", "swelling", {"letters": 10_100})

    rig.run(1_000)

    assert [request.run_id for request in rig.requests()] == ["fits"]
    [outcome] = rig.outcomes()
    assert outcome.failure is not None
    assert outcome.failure.code == "too_large"
    assert "the arguments of look" in outcome.failure.message


def test_a_partition_whose_marks_are_refused_says_so_and_goes_on_when_they_are_taken() -> None:
    rig = Rig(refuses={RUN_SNAPSHOT: 10})
    rig.start("r", "looking", {"what": "it"})
    rig.run(20_000)
    assert rig.kinds("r") == []
    assert rig.alarms.count("snapshot.refused") >= 3

    rig.refuses.clear()
    rig.run(10_000)

    assert rig.kinds("r") == ["RunRequested", "RunStarted", "CallProposed", "CallDispatched"]


def test_what_is_refused_of_a_snapshot_is_kept_when_it_is_taken() -> None:
    rig = Rig()
    rig.run(1_000)
    rig.refuses[RUN_SNAPSHOT] = 150
    rig.start("r", "looking", {"what": "it"})
    rig.run(20_000)
    assert "snapshot.refused" in rig.alarms

    rig.refuses.clear()
    rig.run(20_000)
    rig.successor(ahead=100)
    rig.run(1_000)

    lane, log = rig.planner.lanes.get(0), rig.broker.log(RUN_LOG, 0)
    assert lane is not None
    assert lane.log.snapshot.whole
    assert lane.log.snapshot.marks is not None
    assert lane.log.snapshot.marks.log > next(record.offset for record in log.records if parse_log_key(record.key))
