"""Forks over HTTP: who may, what a form must have, and a report that is what the command prints."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlencode

import pytest

from refold.console.gateway.forks import ForkRoom
from refold.engine.runtime.settings import GatewayPart
from refold.lab.forks.report import ForkReport
from tests.forks.recording import family_of, fork
from tests.forks.zoo import RUNS
from tests.forks.zoo import app as zoo
from tests.gateway.test_logins import Keys, bearer
from tests.gateway.test_reading import Bench
from tests.pages.test_forks import FORM, ROOT, write

CHANGES = {"at": 0, "input": {"items": ["silk"]}, "stubs": {"buy": "9 silk"}}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, Keys]:
    monkeypatch.setenv("REFOLD_ENVIRONMENT", "test")
    monkeypatch.chdir(ROOT)
    keys = Keys(tmp_path / "api.json")
    keys.new("none", "viewer")
    bench = Bench(part=GatewayPart(api_keys=str(keys.path)))
    bench.gateway.forks = ForkRoom("tests.forks.zoo:app")
    write(bench, [RUNS["plain"]()])  # type: ignore[list-item]
    return bench, keys


def test_the_json_is_the_report_of_the_command_and_needs_an_operator(site: tuple[Bench, Keys]) -> None:
    bench, keys = site
    path, here = (
        "/api/runs/r-1/fork",
        fork(zoo, family_of(RUNS["plain"]()), "r-1", input='{"items":["silk"]}', stubs={"buy": '"9 silk"'}),
    )
    with bench.http as http:
        found = {
            role: http.post(path, json=CHANGES, headers=bearer(keys.new(role, role)))
            for role in ("viewer", "approver", "operator", "admin")
        }
        nobody = http.post(path, json=CHANGES)
        wrong = http.post(path, json={"edits": {"x": 1}}, headers=bearer(keys.new("eve", "operator")))
        other = http.post(path, json={"--allow-pure": True}, headers=bearer(keys.new("eve", "operator")))

    assert {role: answer.status_code for role, answer in found.items()} == {
        "viewer": 403,
        "approver": 403,
        "operator": 200,
        "admin": 200,
    }
    assert nobody.status_code == 401
    assert (wrong.status_code, other.status_code) == (422, 422)
    reports = [ForkReport.model_validate(found[role].json()) for role in ("operator", "admin")]
    assert reports[0] == reports[1]
    assert reports[0].model_copy(update={"isolated": False}) == here


def test_a_form_without_the_secret_of_its_page_forks_nothing(site: tuple[Bench, Keys]) -> None:
    bench, keys = site
    with bench.http as http:
        login = http.post("/api/login", headers=bearer(keys.new("ada", "operator")))
        cookie = {"Cookie": login.headers["set-cookie"].partition(";")[0], "origin": "http://127.0.0.1:8321"} | FORM
        csrf = re.search(r'name="csrf" value="([0-9a-f]{64})"', http.get("/runs/r-1/fork", headers=cookie).text)
        assert csrf is not None
        for secret, status in (("", 403), ("0" * 64, 403), (csrf[1], 200)):
            answer = http.post("/runs/r-1/fork", content=urlencode({"at": 0, "csrf": secret}), headers=cookie)
            assert answer.status_code == status
            assert ("step by step" in answer.text) is (status == 200)
        evil = cookie | {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
        assert http.post("/runs/r-1/fork", content=f"csrf={csrf[1]}", headers=evil).status_code == 403
        viewer = http.get("/runs/r-1/fork?at=3", headers=bearer(keys.new("vic", "viewer")))
    assert "forks on this page need an operator" in viewer.text
    assert "<textarea" not in viewer.text
