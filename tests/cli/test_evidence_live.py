"""Why an effect happened, and its proof in a file, on a running platform."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from refold.console.gateway.site import ROOMS
from refold.engine.runtime.addresses import ROOT_PUB
from tests.cli.terminal import Dev, refold
from tests.waiting import eventually


@pytest.fixture(scope="module")
def wiped(dev: Dev) -> str:
    """Give the call of a child that people have let out."""
    dev.refold("run", "start", "household", "--id", "house", "--requester", "eve")
    asked = eventually(lambda: dev.read("approval", "list"), what="the question")[0]["approval"]
    dev.refold("approval", "approve", asked, "--actor", "ada", "-m", "as agreed")
    call = str(asked.partition("~")[0])
    run = call.partition("/")[0]
    eventually(lambda: dev.read("run", "show", run)["status"] == "completed", what="the child")
    return call


@pytest.fixture(scope="module")
def fired(dev: Dev) -> str:
    """Give a call that is claimed in the log."""
    dev.refold("run", "start", "risky", "--id", "risky-1", "--wait")
    return str(dev.read("run", "show", "risky-1")["timeline"][0]["call_id"])


def why(dev: Dev, name: str, *more: str) -> dict[str, Any]:
    """The chain behind an id."""
    found: dict[str, Any] = dev.read("why", name, *more)
    return found


def kinds(found: dict[str, Any]) -> list[str]:
    """The kinds of the links, in order, each once."""
    return list(dict.fromkeys(link["kind"] for link in found["links"]))


def test_an_effect_leads_back_to_the_people_and_the_request(dev: Dev, wiped: str) -> None:
    found = why(dev, wiped)

    step = found["step"]
    assert (step["name"], step["status"], step["effect"]) == ("wipe", "completed", "keyed")
    assert kinds(found) == ["effect", "order", "decision", "vote", "proposal", "policy", "parent", "request"]
    [vote] = [link for link in found["links"] if link["kind"] == "vote"]
    assert (vote["by"], vote["said"]["message"]) == ("ada", "as agreed")
    assert {link["run_id"] for link in found["links"]} == {wiped.partition("/")[0], "house"}
    last = found["links"][-1]
    assert (last["by"], last["cause"]["topic"]) == ("eve", "run-requested")
    assert all(link["place"].startswith("run-log/") for link in found["links"])


def test_a_claim_stands_between_the_order_and_the_outcome(dev: Dev, fired: str) -> None:
    found = why(dev, fired)

    [claim] = [link for link in found["links"] if link["kind"] == "claim"]
    assert claim["place"].startswith("tool-claimed.default/")
    assert (claim["said"]["attempt"], claim["said"]["key"]) == (1, found["step"]["key"])


def test_a_key_an_approval_and_an_event_name_the_same(dev: Dev, wiped: str) -> None:
    found = why(dev, wiped)
    run = wiped.partition("/")[0]
    [asked] = dev.read("run", "show", run)["timeline"][0]["approvals"]

    assert why(dev, found["step"]["key"])["links"] == found["links"]
    assert why(dev, asked["approval_id"])["links"] == found["links"]
    assert why(dev, f"{run}/1", "--from-log")["links"][-1]["by"] == "eve"


def test_the_view_and_the_log_say_the_same(dev: Dev, wiped: str) -> None:
    assert why(dev, wiped)["links"] == why(dev, wiped, "--from-log")["links"]


def test_a_bundle_of_an_effect_holds_and_every_line_of_it_is_missed(dev: Dev, wiped: str, tmp_path: Path) -> None:
    file = tmp_path / "why.jsonl"
    dev.refold("why", wiped, "--bundle", str(file))
    root = (dev.data / ROOT_PUB).read_text().strip()
    lines = file.read_text().splitlines(keepends=True)

    last = str(dev.read("policy", "show")["number"])
    told = json.loads(refold("verify", str(file), "--root", root, "--catalog", last, "--json").stdout)
    assert (told["holds"], told["verdict"], told["holes"], told["catalog"][0]) == (True, "holds", [], int(last))
    assert ["heads are not compared" in note for note in told["notes"]] == [True]
    assert [(each["actors"], each["checked"]) for each in told["decisions"]] == [(["ada"], True)]
    for number, line in enumerate(lines):
        file.write_text("".join(lines[:number] + lines[number + 1 :]))
        result = refold("verify", str(file), "--root", root, "--json")
        [hole] = json.loads(result.stdout)["holes"]
        run, _, seq = json.loads(line).get("key", "").partition("/")
        named = (run, int(seq.partition("/")[0])) if json.loads(line)["kind"] == "entry" else ("", 0)

        assert (result.exit_code, hole["record"], (hole["run_id"], hole["seq"])) == (1, number, named)


def test_a_key_that_the_bundle_names_itself_is_not_trusted(dev: Dev, wiped: str, tmp_path: Path) -> None:
    file = tmp_path / "why.jsonl"
    dev.refold("why", wiped, "--bundle", str(file))
    other = "root-0000:" + "A" * 43

    last = str(dev.read("policy", "show")["number"])
    assert refold("verify", str(file), "--root", f"@{dev.data / ROOT_PUB}", "--catalog", last).exit_code == 0
    assert refold("verify", str(file), "--root", f"@{dev.data / ROOT_PUB}").exit_code == 1  # younger than the catalog
    assert refold("verify", str(file), "--root", other).exit_code in (1, 2)


def test_a_run_is_read_from_its_bundle(dev: Dev, wiped: str, tmp_path: Path) -> None:
    file, child = str(tmp_path / "house.jsonl"), wiped.partition("/")[0]
    dev.refold("why", "house", "--bundle", file)

    for run in ("house", child):
        shown = json.loads(refold("run", "show", run, "--bundle", file, "--json").stdout)
        live = dev.read("run", "show", run)
        assert {name: shown[name] for name in ("timeline", "head", "result")} == {
            name: live[name] for name in ("timeline", "head", "result")
        }
        told = refold("run", "events", run, "--bundle", file, "--json").stdout.splitlines()
        assert [json.loads(line) for line in told] == dev.lines("run", "events", run)
    result = refold("replay", child, "--bundle", file, "--app", "tests/cli/app.py", "--json")
    assert json.loads(result.stdout)["verdict"] == "agrees", result.output
    assert refold("run", "show", "nobody", "--bundle", file).exit_code == 3


def test_a_redacted_bundle_shows_no_value_and_says_how_far_it_holds(dev: Dev, wiped: str, tmp_path: Path) -> None:
    file, root = tmp_path / "why.jsonl", f"@{dev.data / ROOT_PUB}"
    dev.refold("why", wiped, "--bundle", str(file), "--redact", "args,results")
    result = refold("verify", str(file), "--root", root, "--catalog", str(dev.read("policy", "show")["number"]))

    assert result.exit_code == 8
    assert "are redacted" in result.output
    shown = refold("run", "events", wiped.partition("/")[0], "--bundle", str(file), "--json").stdout
    assert '"wiped"' not in shown
    assert refold("why", wiped, "--redact", "names", "--data", str(dev.data)).exit_code == 2


def test_what_is_no_bundle_and_what_is_no_run_are_refused(dev: Dev, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"\x1f\x8b")

    assert refold("verify", str(tmp_path / "other")).exit_code == 2
    assert refold("verify", str(tmp_path / "missing")).exit_code == 2
    assert dev.refold("why", "nobody/1", code=3)
    assert dev.refold("why", "0" * 64, code=3)
    assert dev.refold("why", "what", code=2)


def test_who_takes_bundles_slowly_holds_few_of_them_and_none_once_gone(dev: Dev) -> None:
    dev.refold("run", "start", "scans", "--id", "much", "--input", '{"count": 150, "size": 60000}', "--wait")
    url = urlsplit(dev.state["gateway"])
    with ExitStack() as held:
        answers = []
        share = ROOMS["bundles"] // 2
        for _ in range(share + 2):
            slow = held.enter_context(socket.create_connection((url.hostname, url.port or 0), timeout=30))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            slow.sendall(f"GET /api/runs/much/bundle HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode())
            answers.append(slow.recv(12)[-3:])
        assert answers == [b"200"] * share + [b"429"] * 2
        assert httpx.get(f"{url.geturl()}/api/runs/much", timeout=30).status_code == 200
    eventually(
        lambda: httpx.get(f"{url.geturl()}/api/runs/much/bundle", timeout=60).status_code == 200, within=3, every=1
    )
