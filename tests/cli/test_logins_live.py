"""A gateway with logins beside a `refold dev`: people vote, start and follow in their own names, until they may not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from refold.client import Client
from refold.core.approval.signature import content_of
from refold.core.messages import ApprovalVote
from refold.core.wire import codec
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.runtime.addresses import addresses
from tests.cli.terminal import Dev, refold
from tests.cli.test_gateway_live import answers
from tests.waiting import eventually


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class LoginGateway:
    """A gateway process with API keys, which may be killed and started again."""

    def __init__(self, dev: Dev, folder: Path) -> None:
        self.dev, self.port, self.keys = dev, free_port(), folder / "api.json"
        self.log = folder / "gateway.log"
        (folder / "session.key").write_text("7a" * 32 + "\n")
        (folder / "session.key").chmod(0o600)
        self.env = {
            "REFOLD_GATEWAY__API_KEYS": str(self.keys),
            "REFOLD_GATEWAY__SESSION_KEY": str(folder / "session.key"),
            "REFOLD_GATEWAY__HOSTS": '["refold.example"]',
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> None:
        command = [sys.executable, "-m", "refold", "serve", "gateway", "--port", str(self.port), *words]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--data", str(self.dev.data)], env=os.environ | self.env, stdout=log, stderr=log
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def key(self, actor: str, *roles: str) -> str:
        options = [word for role in roles for word in ("--role", role)]
        made = refold("keys", "new", "--api", actor, *options, "--file", str(self.keys), "--json")
        return str(json.loads(made.stdout)["key"])

    def speaking(self, key: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=60)


@pytest.fixture
def gateway(dev: Dev, tmp_path: Path) -> Iterator[LoginGateway]:
    made = LoginGateway(dev, tmp_path)
    yield made
    made.kill()


def up(http: httpx.Client) -> None:
    eventually(lambda: answers(http))


def test_an_approver_votes_in_their_own_name_with_the_roles_of_their_login(dev: Dev, gateway: LoginGateway) -> None:
    opal, ada = gateway.key("opal", "operator"), gateway.key("ada", "approver", "lead")
    gateway.start()
    with gateway.speaking(opal) as operator, gateway.speaking(ada) as approver:
        up(operator)
        begun = operator.post("/api/runs", json={"agent": "cleaner", "id": "who-1"}, params={"wait": 30})
        [question] = eventually(lambda: approver.get("/api/runs/who-1").json().get("approvals"))
        path = f"/api/approvals/{question}/votes"
        eventually(lambda: approver.get(f"/api/approvals/{question}").status_code == 200)
        refused = operator.post(path, json={"action": "approve"})
        voted = approver.post(path, json={"action": "approve", "message": "go on"})
        cannot = approver.post("/api/runs/who-1/cancel", json={})
        shown = eventually(lambda: _completed(approver, "who-1"))

    assert (begun.status_code, shown["requester"]) == (200, "opal")
    assert (refused.status_code, refused.json()["code"]) == (403, "unauthorised")
    assert cannot.status_code == 403
    assert (voted.status_code, voted.json()["what"]) == (200, "decided"), voted.text
    assert [by["actor"] for by in voted.json()["decision"]["votes"]] == ["ada"]
    assert "ada" in str(shown["timeline"])
    assert [(each["actor"], each["roles"]) for each in votes(dev, question)] == [("ada", ["approver", "lead"])]


def test_whose_word_it_is_follows_from_the_login(gateway: LoginGateway) -> None:
    keys = [gateway.key(name, "operator") for name in ("opal", "otto")]
    gateway.start()
    with gateway.speaking(keys[0]) as opal, gateway.speaking(keys[1]) as otto:
        up(opal)
        for run in ("who-2", "who-3"):
            opal.post("/api/runs", json={"agent": "sleeper", "id": run}, params={"wait": 30}).raise_for_status()
        opal.post("/api/runs/who-2/cancel", json={}, params={"wait": 30}).raise_for_status()
        otto.post("/api/runs/who-3/cancel", json={"reason": "late"}, params={"wait": 30}).raise_for_status()
        audits = [opal.get(f"/api/runs/{run}/audit").json() for run in ("who-2", "who-3")]
        causes = [[line["cause"]["topic"] for line in audit if "Cancel" in line["type"]] for audit in audits]
        lists = [each.get("/api/runs", params={"root": "who-3"}).json() for each in (opal, otto)]

    assert [set(each) for each in causes] == [{"run-signalled"}, {"run-operated"}]
    assert lists[0] == lists[1] != {}


@pytest.mark.long
def test_a_stream_ends_soon_after_its_key_was_revoked(dev: Dev, gateway: LoginGateway) -> None:
    viewer, opal = gateway.key("eve", "viewer"), gateway.key("opal", "operator")
    gateway.start()
    with gateway.speaking(viewer) as http, gateway.speaking(opal) as operator:
        up(operator)
        operator.post("/api/runs", json={"agent": "sleeper", "id": "who-4"}, params={"wait": 30}).raise_for_status()
        with http.stream("GET", "/api/runs/who-4/stream") as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("id: 1")
            refold("keys", "revoke", "--api", viewer[4:16], "--file", str(gateway.keys))
            begun = time.monotonic()
            rest = list(lines)
        assert time.monotonic() - begun < 25
        assert not [line for line in rest if "RunCancelled" in line]
        assert http.get("/api/runs/who-4").status_code == 401
        operator.post("/api/runs/who-4/cancel", json={}, params={"wait": 30}).raise_for_status()


def test_a_session_outlives_its_gateway(gateway: LoginGateway) -> None:
    opal = gateway.key("opal", "operator")
    gateway.start()
    with gateway.speaking(opal) as http:
        up(http)
        found = http.post("/api/login")
    gateway.kill()
    gateway.start()
    page = {"Host": "refold.example", "Cookie": found.headers["set-cookie"].partition(";")[0]}
    with httpx.Client(base_url=f"http://127.0.0.1:{gateway.port}", headers=page, timeout=60) as browser:
        up(browser)
        csrf = browser.get("/api/login").json()["csrf"]
        write: dict[str, Any] = {
            "json": {"agent": "marks", "input": {"count": 1}, "id": "who-5"},
            "params": {"wait": 30},
        }
        own = {"Origin": "https://refold.example", "Refold-Csrf": csrf}
        statuses = [browser.post("/api/runs", headers=headers, **write).status_code for headers in ({}, own)]

    assert statuses == [403, 200]


def test_who_connects_is_who_connects_whatever_a_header_says(gateway: LoginGateway) -> None:
    proxy = {"actor": "X-Forwarded-User", "peers": ["10.0.0.7"]}
    gateway.env |= {"REFOLD_GATEWAY__PROXY": json.dumps(proxy), "REFOLD_GATEWAY__ROLES": '{"sre": "viewer"}'}
    key = gateway.key("opal", "viewer")
    gateway.start()
    told = {"X-Forwarded-User": "ada", "X-Forwarded-Groups": "sre"}
    with gateway.speaking(key) as http:
        up(http)
        del http.headers["Authorization"]
        forged = [
            http.get("/api/login", headers=told | more).status_code for more in ({}, {"X-Forwarded-For": "10.0.0.7"})
        ]
        gateway.kill()
        gateway.env["REFOLD_GATEWAY__PROXY"] = json.dumps(proxy | {"peers": ["127.0.0.1"]})
        gateway.start()
        up(http)
        good = http.get("/api/login", headers=told).json()

    assert forged == [401, 401]
    assert good["actor"] == "ada"


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (("--host", "0.0.0.0"), {"REFOLD_GATEWAY__API_KEYS": ""}, "asks nobody who they are"),
        (("--host", "0.0.0.0"), {"REFOLD_GATEWAY__HOSTS": ""}, "no name of it is known"),
        (("--actor", "ada"), {}, "--actor names the one user"),
        ((), {"REFOLD_GATEWAY__API_KEYS": "nowhere.json"}, "there is no file nowhere.json"),
        ((), {"REFOLD_GATEWAY__SESSION_KEY": "nowhere"}, "there is no key file"),
    ],
)
def test_what_would_let_others_in_does_not_start(
    gateway: LoginGateway, words: tuple[str, ...], env: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.key("opal", "operator")
    for name, value in (gateway.env | env).items():
        monkeypatch.setenv(name, value)

    ended = refold("serve", "gateway", "--port", str(gateway.port), *words, "--data", str(gateway.dev.data))

    assert ended.exit_code in (2, 3)
    assert said in ended.output


def test_one_client_speaks_in_many_names(dev: Dev) -> None:
    with Client(data=str(dev.data), actor="web") as web:
        names = ("ann", "ben", "cleo")
        people = [web.of(name) for name in names]
        for name, client in zip(names, people, strict=True):
            client.start("sleeper", id=f"many-{name}")
        infos = [web.get(f"many-{name}") for name in names]
        people[0].close()
        ended = [client.cancel(f"many-{name}") for name, client in zip(names, people, strict=True)]
        web.start("cleaner", id="many-clean")
        [question] = eventually(lambda: web.get("many-clean").approvals)
        web.of("dora", roles=["lead"]).decide(question, "approve")

    assert [info.requester for info in infos] == list(names)
    assert [each.outcome for each in ended] == ["accepted"] * 3
    assert [(each["actor"], each["roles"]) for each in votes(dev, question)] == [("dora", ["lead"])]


def votes(dev: Dev, question: str) -> list[dict[str, Any]]:
    """The words that were signed about a question."""
    found = []
    for record in KafkaLogReader(addresses(data=str(dev.data)).settings.kafka).scan("approval-voted"):
        message = codec.decode(ApprovalVote, record.value) if record.value else None
        if message is not None and message.approval_id == question:
            found.append(content_of(message.token))
    return found


def _completed(http: httpx.Client, run: str) -> dict[str, Any] | None:
    found: dict[str, Any] = http.get(f"/api/runs/{run}").json()
    return found if found.get("status") == "completed" else None
