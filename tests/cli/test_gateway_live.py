"""The gateway of a `refold dev`: runs start, are followed and steered by HTTP; nothing is lost when it is killed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from refold.client import Client
from refold.client.operations.runs import Runs
from refold.core.ids import RunId, call_id, home
from refold.core.messages import StreamPart
from refold.core.topics import RUN_LOG
from refold.core.wire import codec
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.runtime.settings import KafkaSettings
from tests.cli.terminal import Dev
from tests.waiting import eventually


@pytest.fixture
def http(dev: Dev) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=dev.state["gateway"], timeout=60) as client:
        eventually(lambda: answers(client))
        yield client


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def started(http: httpx.Client, run: str, agent: str, **given: Any) -> httpx.Response:
    return http.post("/api/runs", json={"agent": agent, "input": given, "id": run}, params={"wait": 30})


def followed(http: httpx.Client, run: str, seen: list[int]) -> None:
    """Reads a stream to the end of the run, and goes on behind the last id whenever it breaks off."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        headers = {"Last-Event-ID": str(seen[-1])} if seen else {}
        try:
            with http.stream("GET", f"/api/runs/{run}/stream", headers=headers) as stream:
                if stream.status_code != 200:
                    time.sleep(0.1)
                    continue
                for line in stream.iter_lines():
                    if line.startswith("id: "):
                        seen.append(int(line.removeprefix("id: ")))
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"{run} is not over after {seen[-1:]}")


def test_a_run_is_started_followed_and_read_by_http(http: httpx.Client) -> None:
    first = started(http, "http-1", "marks", count=3)
    again = started(http, "http-1", "marks", count=3)
    other = started(http, "http-1", "marks", count=4)
    seen: list[int] = []
    followed(http, "http-1", seen)
    info = http.get("/api/runs/http-1").json()

    assert (first.status_code, first.json()) == (200, {"run_id": "http-1", "known": False})
    assert first.headers["refold-after"].startswith("run-log/")
    assert again.json()["known"] is True
    assert (other.status_code, other.json()["code"]) == (422, "conflict")
    assert seen == list(range(1, info["seq"] + 1))
    assert info["status"] == "completed"
    assert [step["name"] for step in http.get("/api/runs/http-1/steps").json()] == ["mark"] * 3


def test_a_stream_opened_right_behind_its_request_has_the_run_from_the_first_event_to_the_last(
    http: httpx.Client,
) -> None:
    for number in range(10):
        run, events, kinds = f"at-once-{number}", list[int](), list[str]()
        sent = http.post("/api/runs", json={"agent": "speaker", "input": {}, "id": run}, params={"wait": 0})
        with http.stream("GET", f"/api/runs/{run}/stream", params={"parts": "true"}) as stream:
            assert stream.status_code == 200, sent.text
            for line in stream.iter_lines():
                events += [int(line.removeprefix("id: "))] if line.startswith("id: ") else []
                kinds += [line.removeprefix("event: ")] if line.startswith("event: ") else []
        assert events == list(range(1, http.get(f"/api/runs/{run}").json()["seq"] + 1))
        assert [kind for kind in kinds if kind != "part"][-1] == "RunCompleted"


def test_whoever_wrote_reads_what_they_wrote(http: httpx.Client) -> None:
    after = started(http, "http-2", "sleeper").headers["refold-after"]
    cancelled = http.post("/api/runs/http-2/cancel", json={"reason": "enough"}, params={"wait": 30})
    later = cancelled.headers["refold-after"]

    assert http.get("/api/runs/http-2", headers={"Refold-After": after}).status_code == 200
    assert http.get("/api/runs/http-2", headers={"Refold-After": later}).json()["status"] == "cancelled"
    assert cancelled.json()["outcome"] == "accepted"
    late = http.post("/api/runs/http-2/pause", params={"wait": 30})
    assert (late.status_code, late.json()["code"]) == (409, "conflict")


def test_a_note_is_in_the_audit_trail_once_however_often_it_is_sent(dev: Dev, http: httpx.Client) -> None:
    started(http, "noted-1", "sleeper")
    body, key = {"note": "the customer called"}, {"Idempotency-Key": "n-1"}
    sent = [http.post("/api/runs/noted-1/notes", json=body, headers=key, params={"wait": 30}) for _ in range(2)]
    other = http.post("/api/runs/noted-1/notes", json={"note": "another"}, headers=key, params={"wait": 30})
    dev.read("run", "annotate", "noted-1", "look at the invoice", "--id", "n-2", "--as-operator")
    http.post("/api/runs/noted-1/cancel", params={"wait": 30})
    late = http.post("/api/runs/noted-1/notes", json={"note": "late"}, params={"wait": 30})

    trail = http.get("/api/runs/noted-1/audit").json()
    assert [answer.json()["outcome"] for answer in sent] == ["accepted", "known"]
    assert (other.status_code, late.status_code) == (409, 409)
    noted = [(line["actors"], line["note"]) for line in trail if line["note"]]
    assert [note for _, note in noted] == ["the customer called", "look at the invoice"]
    assert all(actors for actors, _ in noted)
    assert [line["note"] for line in dev.lines("run", "events", "noted-1", "--audit") if line["note"]] == [
        note for _, note in noted
    ]


def test_a_stream_goes_on_after_every_process_was_killed(dev: Dev, http: httpx.Client) -> None:
    started(http, "http-3", "marks", count=60)
    seen: list[int] = []
    follower = threading.Thread(target=followed, args=(http, "http-3", seen))
    follower.start()
    for service in ("gateway", "planner", "gateway"):
        before = len(seen)
        eventually(lambda: len(seen) > before or not follower.is_alive())  # noqa: B023
        dev.kill(service)
    follower.join(120)

    eventually(lambda: answers(http))
    assert seen == list(range(1, len(seen) + 1))
    assert http.get("/api/runs/http-3").json()["seq"] == len(seen)
    assert len(dev.effects("http-3")) == 60
    assert dev.read("projection", "verify")["equal"] is True


def test_a_view_is_built_anew_beside_the_one_in_use(dev: Dev, http: httpx.Client) -> None:
    before = dev.read("projection", "list", "refold")["generations"][0]["generation"]
    built = dev.read("projection", "rebuild")

    def replaced() -> bool:
        there = dev.read("projection", "list", "refold")["generations"]
        return [(each["generation"], each["state"], each["lag"]) for each in there] == [(before + 1, "serving", 0)]

    assert built["generation"] == before + 1
    eventually(replaced, what="the old generation's end")
    assert http.get("/api/runs?limit=1").json()["runs"] != []
    assert dev.read("projection", "verify")["equal"] is True


def test_a_run_out_of_the_view_is_the_one_out_of_the_log(dev: Dev, http: httpx.Client) -> None:
    started(http, "http-4", "household")
    eventually(lambda: http.get("/api/runs?root=http-4&state=waiting_for_people").json()["runs"])

    for words in (
        ("run", "show", "http-4"),
        ("run", "events", "http-4"),
        ("run", "list", "--limit", "3"),
        ("run", "list", "--agent", "cleaner"),
        ("run", "list", "--status", "suspended"),
        ("run", "list", "--status", "completed", "--label", "team=none"),
        ("run", "list", "--at", "2100-01-01T00:00Z"),
        ("run", "list", "--at", datetime.now(UTC).isoformat(), "--limit", "4", "--status", "suspended"),
        ("run", "list", "--at", "2001-01-01T00:00Z"),
    ):
        viewed = dev.refold(*words, "--json").stdout
        assert viewed == dev.refold(*words, "--from-log", "--json").stdout, words
    assert json.loads(dev.refold("run", "show", "http-4", "--at", "2", "--json").stdout)["seq"] == 2
    by_log = json.loads(dev.refold("run", "show", "http-4", "--from-log", "--json").stdout)
    with Client(data=str(dev.data)) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runs, "get", lambda *_: pytest.fail("the log was asked"))
        shown = client.get("http-4").dump()
    assert shown["head"] == by_log["head"]
    assert [step["status"] for step in shown["timeline"]] == [step["status"] for step in by_log["timeline"]]


def test_parts_of_a_call_come_while_it_runs_and_nobody_speaks_for_another_pool(dev: Dev, http: httpx.Client) -> None:
    started(http, "http-6", "marks", count=1)
    eventually(lambda: http.get("/api/runs/http-6").json()["status"] == "completed")
    (call,) = [each["seq"] for each in http.get("/api/runs/http-6/events").json() if each["type"] == "CallProposed"]

    producer = Producer({"bootstrap.servers": dev.state["kafka"]})
    settings = KafkaSettings(bootstrap=dev.state["kafka"])
    partitions = KafkaLogReader(settings).partitions(RUN_LOG)
    sent = 0

    def say(seq: int, text: str) -> None:
        nonlocal sent
        sent += 1
        run = RunId("http-6")
        part = StreamPart(run, call_id(run, seq), 1, 1, sent, "text", json.dumps({"text": text}))
        topic = f"{settings.prefix}run-stream.default"
        producer.produce(topic, codec.encode(part), part.call_id.encode(), partition=home(run, partitions))
        producer.flush(10)

    found: list[dict[str, Any]] = []
    stop = threading.Event()

    def speak() -> None:
        while not stop.wait(0.2):
            say(call + 1, "of a call that is none")
            say(call, "hello")

    speaker = threading.Thread(target=speak)
    speaker.start()
    url = "/api/runs/http-6/family/stream?parts=true"
    try:
        with http.stream("GET", url, timeout=60) as stream:
            for line in stream.iter_lines():
                if line.startswith('data: {"run_id":"http-6","call_id"'):
                    found.append(json.loads(line.removeprefix("data: ")))
                if len(found) == 5:
                    break
    finally:
        stop.set()
        speaker.join()

    assert {each["data"]["text"] for each in found} == {"hello"}
    assert [each["n"] for each in found] == sorted(each["n"] for each in found)


def test_a_family_and_the_inbox_go_on_through_a_gateway_that_was_killed(dev: Dev, http: httpx.Client) -> None:
    with http.stream("GET", "/api/inbox/stream") as stream:
        begun = next(line for line in stream.iter_lines() if line.startswith("id: ")).removeprefix("id: ")
    started(http, "http-7", "household")
    eventually(lambda: http.get("/api/runs?root=http-7&state=waiting_for_people").json()["runs"])
    seen: list[tuple[str, int]] = []
    last = ""
    for _ in range(3):
        eventually(lambda: answers(http))
        last = part_of_family(http, "http-7", last, seen, 4)
        dev.kill("gateway")
    eventually(lambda: answers(http))
    runs = [row["run_id"] for row in http.get("/api/runs?root=http-7").json()["runs"]]
    expected = {(run, each["seq"]) for run in runs for each in http.get(f"/api/runs/{run}/events").json()}
    part_of_family(http, "http-7", last, seen, len(expected) - len(seen))

    assert len(seen) == len(set(seen)) == len(expected)
    assert set(seen) == expected
    for run in runs:
        assert [seq for name, seq in seen if name == run] == sorted(seq for name, seq in seen if name == run)
    with http.stream("GET", "/api/inbox/stream", headers={"Last-Event-ID": begun}) as stream:
        assert next(line for line in stream.iter_lines() if line.startswith("event: ")) == "event: ApprovalRequested"


def part_of_family(http: httpx.Client, run: str, last: str, seen: list[tuple[str, int]], count: int) -> str:
    """Reads so many events behind an id, and returns the id of the last."""
    url, place = f"/api/runs/{run}/family/stream", last
    with http.stream("GET", url, headers={"Last-Event-ID": last} if last else {}) as stream:
        for line in stream.iter_lines():
            if line.startswith("id: "):
                place = line.removeprefix("id: ")
            elif line.startswith("data: {") and line != "data: {}":
                data = json.loads(line.removeprefix("data: "))
                seen.append((data["run_id"], data["seq"]))
                last, count = place, count - 1
                if not count:
                    return last
    raise AssertionError("the stream has ended")
