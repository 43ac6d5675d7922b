"""Operations by HTTP on a real platform: doubts, stalled and failed runs, large values, keys of inputs."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from refold.core.ids import RunId
from refold.core.wire.blobs import folder_of
from tests.cli.terminal import Dev
from tests.cli.test_gateway_live import answers, started
from tests.waiting import eventually

WAIT = {"wait": 30}


class Patient(httpx.Client):
    """A client that waits while there were too many writes."""

    def post(self, *args: Any, **given: Any) -> httpx.Response:
        while (answer := super().post(*args, **given)).status_code == 429:
            time.sleep(int(answer.headers["retry-after"]))
        return answer


@pytest.fixture
def http(dev: Dev) -> Iterator[httpx.Client]:
    with Patient(base_url=dev.state["gateway"], timeout=60) as client:
        eventually(lambda: answers(client))
        yield client


def found(http: httpx.Client, path: str, which: Callable[[Any], Any]) -> Any:
    """The answer of a route, once it is what is waited for."""
    return eventually(lambda: which(http.get(path).json()), what=path)


def test_what_is_deployed_is_listed(http: httpx.Client) -> None:
    started(http, "ops-1", "sleeper")
    agents = found(http, "/api/agents", lambda rows: {row["agent"]: row["members"] for row in rows})
    tools = found(http, "/api/tools", lambda rows: {row["tool"]: row["effect"] for row in rows})
    versions = {row["agent"]: row for row in http.get("/api/versions").json()}
    (projection,) = http.get("/api/projections").json()

    assert agents["sleeper"]
    assert tools["fire"] == "once"
    assert "ops-1" in versions["sleeper"]["runs"]
    assert versions["sleeper"]["members"] == [by["member"] for by in agents["sleeper"]]
    assert projection["generations"][0]["state"] == "serving"
    assert http.get("/api/halts").json() == []


def test_a_halt_is_listed_until_it_is_lifted(dev: Dev, http: httpx.Client) -> None:
    dev.refold("halt", "--tool", "fire", "--reason", "too hot")
    halted = http.get("/api/halts").json()
    dev.refold("halt", "--lift", "--tool", "fire")

    assert halted == [{"what": "tool fire", "scope": "tool", "name": "fire", "reason": "too hot"}]
    assert http.get("/api/halts").json() == []


def doubt(dev: Dev, http: httpx.Client, run: str) -> dict[str, Any]:
    """A run whose executor was killed in the middle of a call that cannot be repeated."""
    hold = dev.data / f"hold-{run}"
    hold.touch()
    started(http, run, "risky")
    eventually(lambda: dev.effects(run))
    dev.kill("executor")
    hold.unlink()
    which = lambda page: next((row for row in page["doubts"] if row["run_id"] == run and row["approval"]), None)  # noqa: E731
    return dict(found(http, "/api/doubts?limit=500", which))


def test_a_call_in_doubt_is_resolved_by_a_signed_vote(dev: Dev, http: httpx.Client) -> None:
    row = doubt(dev, http, "ops-2")
    path, body = f"/api/doubts/{row['approval']}/resolve", {"verdict": "happened", "result": "fired", "message": "seen"}
    by_operator = http.post(f"/api/doubts/{row['call_id']}/resolve", json=body)
    by_vote = http.post(path, json=body, headers={"Idempotency-Key": "v-1"})
    again = http.post(path, json=body, headers={"Idempotency-Key": "v-1"})
    other = http.post(path, json={"verdict": "give_up"}, headers={"Idempotency-Key": "v-1"})
    late = http.post(path, json=body)

    assert (row["tool"], row["agent"], row["attempt"]) == ("fire", "risky", 1)
    assert (by_operator.status_code, by_operator.json()["code"]) == (409, "conflict")
    assert (by_vote.status_code, by_vote.json()["what"]) == (200, "decided"), by_vote.text
    assert (again.status_code, again.json()) == (200, by_vote.json())
    assert (other.status_code, other.json()["code"]) == (422, "conflict")
    assert "answer, " in other.json()["detail"]
    assert (late.status_code, late.json()["code"]) == (409, "conflict")
    assert found(http, "/api/runs/ops-2", lambda run: run["status"] == "completed" and run)["result"] == "fired"
    assert all(each["run_id"] != "ops-2" for each in http.get("/api/doubts").json()["doubts"])


def test_a_call_on_hold_is_resolved_by_the_word_of_an_operator(dev: Dev, http: httpx.Client) -> None:
    (dev.data / "closed-ops-3").touch()
    started(http, "ops-3", "insisting")
    [call] = found(http, "/api/runs/ops-3", lambda run: run.get("held"))
    said = http.post(f"/api/doubts/{call}/resolve", json={"verdict": "give_up"}, params=WAIT)

    assert (said.status_code, said.json()["outcome"]) == (200, "accepted"), said.text
    assert found(http, "/api/runs/ops-3", lambda run: run["status"] == "completed" and run)["result"] == "no: not_done"


def test_a_stalled_run_is_tried_again_and_failed(dev: Dev, http: httpx.Client) -> None:
    http.post("/api/runs", json={"agent": "nobody", "id": "ops-4"}, params={"wait": 0})
    eventually(lambda: "ops-4" in dev.refold("run", "list", "--status", "stalled").stdout)
    alive = started(http, "ops-5", "sleeper")
    again = http.post("/api/runs/ops-4/retry")
    changed = http.post("/api/runs/ops-4/retry", json={"steps": 7})
    failed = http.post("/api/runs/ops-4/fail", json={"reason": "nobody will come"}, params=WAIT)
    twice = http.post("/api/runs/ops-4/fail")

    assert alive.status_code == 200
    assert http.post("/api/runs/ops-5/fail").json()["code"] == "conflict"
    assert http.post("/api/runs/ops-5/retry").json()["code"] == "conflict"
    assert (again.status_code, again.json()["hint"]) == (409, "deploy code that agrees")
    assert (changed.status_code, changed.json()["code"]) == (409, "conflict")
    assert (failed.status_code, failed.json()["status"]) == (200, "failed"), failed.text
    assert (twice.status_code, twice.json()["code"]) == (409, "conflict")
    shown = found(http, "/api/runs/ops-4", lambda run: run["status"] == "failed" and run)
    assert shown["failure"]["message"].endswith(": nobody will come")


def test_a_failed_run_is_retried_from_a_step_with_other_arguments(dev: Dev, http: httpx.Client) -> None:
    door = dev.data / "closed-ops-6"
    door.touch()
    started(http, "ops-6", "parcels")
    found(http, "/api/runs/ops-6", lambda run: run["status"] == "failed")
    door.unlink()
    path = "/api/runs/ops-6/retry"
    asks = http.post(path, json={"from_step": 1})
    beyond = http.post(path, json={"from_step": 99}, params=WAIT)
    alone = http.post(path, json={"edit": {"n": 1}})
    body = {"from_step": 1, "repeat_effects": True, "reason": "once more", "edit": {"run": "ops-6", "n": 7}}
    done = http.post(path, json=body, params=WAIT)
    twice = http.post(path, json=body, params=WAIT)

    assert (asks.status_code, asks.json()["code"]) == (409, "conflict")
    assert "step 1 mark (keyed)" in asks.json()["detail"]
    assert (beyond.status_code, beyond.json()["code"]) == (409, "conflict")
    assert (alone.status_code, alone.json()["code"]) == (422, "malformed")
    assert (done.status_code, done.json()["outcome"]) == (200, "accepted"), done.text
    assert (twice.status_code, twice.json()["code"]) == (409, "conflict")
    found(http, "/api/runs/ops-6", lambda run: run["status"] == "completed")
    assert any(line.split()[1] == "7" for line in dev.effects("ops-6"))


def test_the_records_of_a_run_are_repaired(http: httpx.Client) -> None:
    started(http, "ops-7", "marks", count=1)
    found(http, "/api/runs/ops-7", lambda run: run["status"] == "completed")
    before = http.get("/api/runs/ops-7/events").json()
    done = http.post("/api/runs/ops-7/repair", params=WAIT)

    assert (done.status_code, done.json()["outcome"]) == (200, "accepted"), done.text
    after = http.get("/api/runs/ops-7/events", headers={"Refold-After": done.headers["refold-after"]}).json()
    assert [each["event"] for each in after] == [each["event"] for each in before]
    assert http.post("/api/runs/nobody/repair").json()["code"] == "not_found"
    assert http.post("/api/runs/ops-7/repair", json={"head": "../x"}).json()["code"] == "malformed"


def test_large_values_are_read_by_their_digest_from_their_run_alone(dev: Dev, http: httpx.Client) -> None:
    started(http, "ops-8", "scans", count=2, size=3_000_000)
    started(http, "ops-9", "scans", count=1, size=70_000)
    for run in ("ops-8", "ops-9"):
        found(http, f"/api/runs/{run}", lambda run: run["status"] == "completed")
    text = json.dumps("0" * 3_000_000).encode()
    digest = hashlib.sha256(text).hexdigest()
    whole = http.get(f"/api/blobs/{digest}", params={"run": "ops-8"})

    assert (whole.status_code, whole.content) == (200, text)
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert whole.headers["content-disposition"] == "attachment"
    assert digest in json.dumps(http.get("/api/runs/ops-8/events").json())
    for wrong, run, status in (
        (digest, "ops-9", 404),
        (digest, "nobody", 404),
        (digest[:-1], "ops-8", 422),
        (digest, "..", 422),
        ("0" * 64, "ops-8", 404),
        (digest.upper(), "ops-8", 422),
    ):
        assert http.get(f"/api/blobs/{wrong}", params={"run": run}).status_code == status, (wrong, run)

    path = dev.data / "blobs" / folder_of(RunId("ops-8")) / digest
    path.write_bytes(b"x" + text[1:])
    try:
        http.get(f"/api/blobs/{digest}", params={"run": "ops-8"})
        raise AssertionError("an altered value was sent to its end")
    except httpx.RemoteProtocolError:
        pass
    path.write_bytes(text[1:])
    assert http.get(f"/api/blobs/{digest}", params={"run": "ops-8"}).status_code == 404
    path.unlink()
    assert http.get(f"/api/blobs/{digest}", params={"run": "ops-8"}).status_code == 404


def test_another_body_under_a_key_is_refused_with_what_the_first_one_was(http: httpx.Client) -> None:
    def said(path: str, key: str, **body: Any) -> tuple[int, Any]:
        answer = http.post(path, json=body, headers={"Idempotency-Key": key}, params=WAIT)
        return answer.status_code, answer.json()

    first = said("/api/runs", "ops-10", agent="ordering", input=None)
    assert first == (200, {"run_id": "ops-10", "known": False})
    assert said("/api/runs", "ops-10", agent="ordering", input=None) == (200, {"run_id": "ops-10", "known": True})
    status, problem = said("/api/runs", "ops-10", agent="marks", input={"count": 3})
    assert (status, problem["code"]) == (422, "conflict")
    assert "ordering with null" in problem["detail"]

    signals = "/api/runs/ops-10/signals"
    assert said(signals, "s-1", name="shipped", data={"parcel": ""})[1]["outcome"] == "accepted"
    assert said(signals, "s-1", name="shipped", data={"parcel": ""})[1]["outcome"] == "known"
    status, problem = said(signals, "s-1", name="shipped", data={"parcel": "7"})
    assert (status, problem["code"]) == (422, "conflict")
    assert 'shipped with {"parcel":""}' in problem["detail"]

    events = http.get("/api/runs/ops-10/events").json()
    (note,) = [each["event"]["data"] for each in events if each["type"] == "NoteRecorded"]
    token = note.strip('"')
    callback = f"/api/callbacks/{token}"
    assert said(callback, "c-1", data=5)[1]["outcome"] == "accepted"
    assert said(callback, "c-1", data=5)[1]["outcome"] == "known"
    status, problem = said(callback, "c-1", data=6)
    assert (status, problem["code"]) == (422, "conflict")
    assert problem["detail"] == "the answer c-1 was 5"
    assert said(callback, "c-2", data=6)[1]["code"] == "conflict"
    assert said(callback, "c-1", failure="no")[0] == 422
    assert said("/api/runs/ops-10/cancel", "x", reason="a")[1]["outcome"] == "accepted"
    assert said("/api/runs/ops-10/cancel", "x", reason="a")[1]["outcome"] == "known"


def test_a_vote_under_a_key_is_one_vote(http: httpx.Client) -> None:
    started(http, "ops-11", "cleaner")
    (question,) = found(http, "/api/runs/ops-11", lambda run: run["approvals"])
    path, key = f"/api/approvals/{question}/votes", {"Idempotency-Key": "v-1"}
    eventually(lambda: http.get(f"/api/approvals/{question}").status_code == 200)
    first = http.post(path, json={"action": "approve"}, headers=key)
    again = http.post(path, json={"action": "approve"}, headers=key)
    other = http.post(path, json={"action": "reject", "message": "no"}, headers=key)
    late = http.post(path, json={"action": "reject", "message": "no"})

    assert (first.status_code, again.status_code) == (200, 200), first.text + again.text
    assert first.json() == again.json()
    assert (other.status_code, other.json()["code"]) == (422, "conflict")
    assert (late.status_code, late.json()["code"]) == (409, "conflict")


@pytest.mark.long
def test_while_the_broker_is_frozen_reads_go_on_and_say_since_when_it_was_not_heard(
    dev: Dev, http: httpx.Client
) -> None:
    started(http, "ops-12", "sleeper")
    broker = dev.pid("broker")
    os.kill(broker, signal.SIGSTOP)
    try:
        lag = eventually(lambda: http.get("/api/runs/ops-12").headers.get("refold-lag"))
        read = http.get("/api/runs/ops-12")
        written = http.post("/api/runs", json={"agent": "sleeper"})
        ready = http.get("/readyz")
    finally:
        os.kill(broker, signal.SIGCONT)

    assert int(lag) >= 1
    assert (read.status_code, read.json()["run_id"]) == (200, "ops-12")
    assert (written.status_code, written.json()["code"]) == (503, "unreachable")
    assert written.headers["retry-after"]
    assert (ready.status_code, ready.json()["kafka"]) == (503, "not heard")
    eventually(lambda: answers(http))
    assert "refold-lag" not in http.get("/api/runs/ops-12").headers
