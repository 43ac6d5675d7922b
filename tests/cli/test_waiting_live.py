"""Signals, callbacks and times on a real platform, from the command line and by whoever has a Kafka client."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer

from tests.cli.terminal import Dev
from tests.waiting import eventually


def token(dev: Dev, run: str) -> str:
    """The token that the run's agent has noted."""
    [note] = eventually(lambda: [line for line in shown(dev, run)["timeline"] if line["kind"] == "note"])  # type: ignore[attr-defined]
    return str(note["result"])


def shown(dev: Dev, run: str) -> dict[str, object]:  # type: ignore[misc]
    """A run, or nothing while the log does not know it."""
    found = [row for row in dev.read("run", "list") if row["run_id"] == run]
    return dev.read("run", "show", run) if found else {"timeline": []}  # type: ignore[return-value]


def test_a_run_is_told_and_answered_from_the_command_line(dev: Dev) -> None:
    dev.read("run", "start", "ordering", "--id", "ordered-1")
    secret = token(dev, "ordered-1")
    waits = shown(dev, "ordered-1")["waiting"]

    early = dev.read("run", "signal", "ordered-1", "other", "--actor", "bob")
    told = dev.read(
        "run", "signal", "ordered-1", "shipped", "--payload", '{"parcel": "p-1"}', "--id", "s-1", "--actor", "bob"
    )
    again = dev.read(
        "run", "signal", "ordered-1", "shipped", "--payload", '{"parcel": "p-1"}', "--id", "s-1", "--actor", "bob"
    )
    dev.refold("run", "signal", "ordered-1", "shipped", "--payload", '{"parcel": "p-2"}', "--id", "s-1", code=4)
    dev.refold("run", "callback", secret, "--payload", '"much"', code=2)
    paid = dev.read("run", "callback", secret, "--payload", "7", "--key", "k-1")

    assert waits == ["paid", "shipped"]
    assert (early["outcome"], early["step"]) == ("accepted", 0)
    assert (told["outcome"], told["step"]) == ("accepted", 3)
    assert (again["outcome"], again["step"]) == ("known", 3)
    assert paid["outcome"] == "accepted"
    eventually(lambda: shown(dev, "ordered-1")["status"] == "completed")
    assert shown(dev, "ordered-1")["result"] == {"parcel": "p-1", "by": "bob", "paid": 7}
    assert dev.read("run", "callback", secret, "--payload", "7", "--key", "k-1")["outcome"] == "known"
    dev.refold("run", "callback", secret, "--payload", "8", code=4)
    dev.refold("run", "callback", secret, "--fail", "no", code=4)
    dev.refold("run", "signal", "ordered-1", "shipped", code=4)


def test_an_outside_system_answers_with_a_kafka_client_and_a_token_alone(dev: Dev) -> None:
    dev.read("run", "start", "ordering", "--id", "ordered-2")
    secret = token(dev, "ordered-2")
    producer = Producer({"bootstrap.servers": dev.state["kafka"], "acks": "all"})  # of any partitioner

    said = {"kind": "callback", "callback": secret, "data": 9, "actor": "psp"}
    producer.produce("refold.run-signalled", key=secret, value=json.dumps(said))
    told = {"run_id": "ordered-2", "signal_id": "s", "kind": "signal", "name": "shipped", "data": {"parcel": "p"}}
    producer.produce("refold.run-signalled", key="ordered-2/s", value=json.dumps(told))
    producer.flush(10)

    eventually(lambda: shown(dev, "ordered-2").get("status") == "completed")
    assert shown(dev, "ordered-2")["result"] == {"parcel": "p", "by": "", "paid": 9}


@pytest.mark.long
def test_a_sleep_is_never_early_also_after_a_take_over(dev: Dev) -> None:
    dev.read("run", "start", "clocked", "--id", "clocked-1", "--input", '{"seconds": 6}')
    eventually(lambda: shown(dev, "clocked-1").get("status") == "suspended")
    dev.kill("planner")

    ended = dev.read("run", "start", "clocked", "--id", "clocked-1", "--input", '{"seconds": 6}', "--wait")

    assert ended["result"] >= 0


@pytest.mark.long
def test_a_run_begins_when_it_is_to_begin(dev: Dev) -> None:
    dev.read("run", "start", "clocked", "--id", "clocked-2", "--input", '{"seconds": 0}', "--not-before", "5s")
    pending = eventually(lambda: shown(dev, "clocked-2").get("status"))

    eventually(lambda: shown(dev, "clocked-2").get("status") == "completed")

    assert pending == "pending"
    events = dev.lines("run", "events", "clocked-2")
    began = next(event["at_ms"] for event in events if event["type"] == "RunStarted")
    assert began >= events[0]["event"]["not_before_ms"]
