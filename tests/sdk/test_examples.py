"""The examples, with the fake cloud as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from refold import App, NotDone, UsageError
from refold.core.events import AttemptFailed
from refold.core.wire.canonical import dumps, parse
from refold.testing import AgentRun, run
from refold.testing.contracts import KeyedContract, ProbedContract, PureContract
from tests.sdk.attempts import run_tool

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass
class Cloud:
    address: str
    file: Path
    process: subprocess.Popen[str]

    def ask(self, path: str, *, post: bool = False) -> Any:
        request = urllib.request.Request(self.address + path, data=b"{}" if post else None)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)


def start_cloud(file: Path) -> Cloud:
    command = [sys.executable, str(EXAMPLES / "fake_cloud.py"), "--port", "0", "--file", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return Cloud(process.stdout.readline().strip().removeprefix("FAKE_CLOUD="), file, process)


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """Give a fake cloud that the example's tools talk to."""
    found = start_cloud(tmp_path / "cloud.jsonl")
    monkeypatch.setenv("FAKE_CLOUD", found.address)
    yield found
    found.process.kill()
    found.process.communicate()


@pytest.fixture
def app() -> App:
    """Give the deployment app."""
    return App.load(str(EXAMPLES / "deploy.py"))


def repeat(driven: AgentRun, step: int) -> str:
    """Runs a step's tool again with the very key of the first time, as after a crash before the record."""
    [call] = [call for call in driven.calls if call.step == step]
    return run_tool(driven.app.tools[call.tool], dumps(call.args), key=call.key)


def test_hello_greets() -> None:
    found = run(App.load(str(EXAMPLES / "hello.py")), "hello", name="Ada").value

    assert found.startswith("Hello Ada! Hello Ada, ")


def test_a_deployment_makes_five_steps_and_every_effect_once(cloud: Cloud, app: App) -> None:
    driven = run(app, "deploy", service="shop", version="1.2.3")

    report = parse(app.agents["deploy"].result_json(driven.value))
    tools = [call.tool for call in driven.calls]
    assert report["healthy"] is True
    assert report["image"] == {"name": "shop:1.2.3", "digest": "push_image-2"}
    assert tools == ["run_migrations", "push_image", "update_load_balancer", "switch_mesh", "check_health"]
    effects = {"run_migrations": 1, "push_image": 1, "update_load_balancer": 1, "switch_mesh": 1}
    assert cloud.ask("/counts") == {"effects": effects, "avoided": {}}


def test_the_cloud_recognises_a_keyed_repetition_and_not_one_without_key(cloud: Cloud, app: App) -> None:
    driven = run(app, "deploy_once", service="shop", version="1.2.3")

    pushed, switched = repeat(driven, 3), repeat(driven, 5)

    counts = cloud.ask("/counts")
    assert (parse(pushed)["digest"], switched) == ("push_image-2", '"switch_mesh-5"')
    assert counts["avoided"] == {"push_image": 1}
    assert (counts["effects"]["push_image"], counts["effects"]["switch_mesh"]) == (1, 2)


class Deployed:
    """Tools of the example, whose effects the cloud counts."""

    app = App.load(str(EXAMPLES / "deploy.py"))
    cloud: Cloud

    @pytest.fixture(autouse=True)
    def counts(self, cloud: Cloud) -> None:
        """Have the cloud that the tools talk to."""
        self.cloud = cloud

    def effects(self) -> int:
        return sum(self.cloud.ask("/counts")["effects"].values())


class TestRunMigrations(Deployed, ProbedContract):
    tool, args = "run_migrations", {"service": "shop", "version": "1"}


class TestPushImage(Deployed, KeyedContract):
    tool, args = "push_image", {"service": "shop", "version": "1"}


class TestCheckHealth(Deployed, PureContract):
    tool, args = "check_health", {"service": "shop", "version": "1"}


def test_an_answer_can_be_held_back_after_the_effect(cloud: Cloud, app: App) -> None:
    tool = app.tools["update_load_balancer"]
    args = tool.canonical_args("shop", {"name": "shop:1", "digest": "d"})
    answers: list[str] = []
    cloud.ask("/hold/update_load_balancer", post=True)
    caller = threading.Thread(target=lambda: answers.append(run_tool(tool, args, key="k1")))
    caller.start()

    held = cloud.ask("/held/update_load_balancer")

    assert held == {"held": True}
    assert answers == []
    assert cloud.ask("/counts")["effects"] == {"update_load_balancer": 1}
    assert run_tool(tool, args, key="k1") == '"update_load_balancer-1"'
    cloud.ask("/release/update_load_balancer", post=True)
    caller.join(30)
    assert answers == ['"update_load_balancer-1"']
    assert cloud.ask("/counts") == {"effects": {"update_load_balancer": 1}, "avoided": {"update_load_balancer": 1}}


def test_the_cloud_remembers_across_its_own_death(cloud: Cloud, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = app.tools["switch_mesh"]
    args = tool.canonical_args("shop", "1")
    first = run_tool(tool, args, key="k1")
    cloud.process.kill()
    cloud.process.wait()

    again = start_cloud(cloud.file)
    monkeypatch.setenv("FAKE_CLOUD", again.address)
    second = run_tool(tool, args, key="k1")
    counts = again.ask("/counts")
    again.process.kill()
    again.process.communicate()

    assert first == second
    assert counts == {"effects": {"switch_mesh": 1}, "avoided": {"switch_mesh": 1}}


def test_without_a_cloud_nothing_was_done_and_the_message_says_how_to_start_one(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CLOUD", "http://127.0.0.1:1")

    with pytest.raises(NotDone, match=r"no fake cloud at http://127.0.0.1:1 .*python examples/fake_cloud.py"):
        run_tool(app.tools["check_health"], app.tools["check_health"].canonical_args("shop", "1"))
    waiting = run(app, "deploy", service="shop", version="1")
    attempts = [event for event in waiting.events if isinstance(event, AttemptFailed)]
    assert "no fake cloud" in attempts[0].failure.message
    # Nothing was done at first, but whether that holds for a later attempt the probe would have to ask the cloud.
    with pytest.raises(UsageError, match=r"waits for step 2 \(doubt\): call run_migrations"):
        _ = waiting.value


def test_a_plan_of_the_same_tools_deploys_too(cloud: Cloud, app: App) -> None:
    steps = [
        {"name": "image", "tool": "push_image", "args": {"service": "shop", "version": "2"}},
        {"name": "lb", "tool": "update_load_balancer", "args": {"service": "shop", "image": {"$ref": "image"}}},
    ]

    planned = App("planned", plan=True)
    planned.tools = app.tools

    driven = run(planned, "plan", steps=steps)

    assert driven.value.results["lb"] == "update_load_balancer-2"
    assert cloud.ask("/counts")["effects"] == {"push_image": 1, "update_load_balancer": 1}
