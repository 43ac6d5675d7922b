"""The incident from its first line to its summary, with planner, executor and approval service killed in every gap."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from refold.client.runs import Run
from refold.core.errors import UsageError
from refold.core.events import ApprovalDecided, ApprovalRequested, CallFailed, CallProposed, Event, RunCompleted
from tests.incident.scene import ROOT, Scene, answer
from tests.waiting import eventually

NO = "50 is more than the database allows"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Give a running platform for the incident."""
    found = Scene(tmp_path_factory.mktemp("incident"))
    with found.stack:
        found.open()
        yield found


def start(scene: Scene, run: str) -> None:
    """Asks for the run in bob's name, and kills everything before anybody can have begun much."""
    asked = '{"service": "shop"}'
    scene.read("run", "start", "incident", "--id", run, "--input", asked, "--requester", "bob")
    scene.kill()


def events(run: Run) -> list[Event]:
    """The accepted events of a run."""
    return [event for judged in run.records if judged.entry for event in judged.entry.events]


def test_people_decide_on_the_change_and_it_is_made_once_whatever_is_killed(scene: Scene) -> None:
    start(scene, "i-1")
    watch = scene.watch("i-1")
    watch.completed("query_log")
    scene.kill()
    watch.completed("read_file", 2)
    scene.kill()

    first = watch.asked()
    scene.kill()
    scene.wait_asked(first)
    scene.wait_serving("approval")
    with pytest.raises(UsageError, match="requester"):
        scene.vote(first, "bob", "approve")
    with pytest.raises(UsageError, match="unentitled"):
        scene.vote(first, "eve", "approve")
    with scene.down("approval"):
        ada = scene.terminal("approval", "reject", first, "--actor", "ada", "-m", NO, "--timeout", "60")
        scene.wait_votes(first, 3)
        scene.kill("planner", "executor")
    assert answer(ada)["what"] == "decided"

    second = watch.asked(2)
    scene.kill()
    scene.wait_asked(second)
    args = json.loads(scene.read("approval", "show", second)["request"]["args"])
    wanted = {**args, "after": args["after"].replace("pool_size = 20", "pool_size = 12")}
    with scene.down("executor"):
        with scene.down("approval"):
            ada = scene.terminal("approval", "edit", second, json.dumps(wanted), "--actor", "ada", "--timeout", "60")
            scene.wait_votes(second, 1)
            scene.kill("planner")
        assert answer(ada)["what"] == "decided"
        watch.decided("edit")
        scene.kill("planner", "approval")
        assert "pool_size = 5\n" in scene.settings
    eventually(scene.changes, within=60, what="the change on disk")
    scene.kill()
    made = scene.made()
    ended = watch.over()

    told = events(ended)
    summary = {"service": "shop", "cause": "PoolTimeout", "changed": "settings.toml", "proposals": 2, "pool_size": 12}
    assert json.loads(next(event.result for event in told if isinstance(event, RunCompleted))) == summary
    proposed = [event.args for event in told if isinstance(event, CallProposed) and event.tool == "edit_file"]
    assert [size for text in proposed for size in (50, 20) if f"pool_size = {size}\\n" in text] == [50, 20]
    decided = [event for event in told if isinstance(event, ApprovalDecided)]
    assert [(event.verdict, event.actors) for event in decided] == [("reject", ["ada"]), ("edit", ["ada"])]
    assert json.loads(decided[1].args) == wanted
    assert [event.failure.code for event in told if isinstance(event, CallFailed)] == ["rejected"]
    assert [event.failure.message for event in told if isinstance(event, CallFailed)] == [NO]
    assert (scene.made(), scene.changes()) == (made, ["settings.toml"])
    assert scene.settings == wanted["after"]
    assert [letter["code"] for letter in scene.read("deadletter", "list")] == ["requester", "unentitled"]
    assert scene.read("run", "verify")["ok"]


def test_the_default_policy_asks_too_and_an_edit_of_an_executor_that_died_before_it_told_is_not_made_again(
    scene: Scene,
) -> None:
    log, before = scene.shop / "changes.log", scene.settings
    log.unlink(missing_ok=True)
    os.mkfifo(log)  # whoever notes a change waits here for a reader: the file is changed, and nobody has said so
    scene.read("policy", "publish", str(ROOT / "infra" / "default-policy.yaml"))
    start(scene, "i-2")
    watch = scene.watch("i-2")
    asked = watch.asked()
    scene.wait_asked(asked)

    assert answer(scene.terminal("approval", "approve", asked, "--actor", "bob"))["what"] == "decided"
    eventually(lambda: scene.settings != before, within=60, what="the change on disk")
    made = scene.made()
    scene.kill("executor")
    ended = watch.over()

    (question,) = [event for event in events(ended) if isinstance(event, ApprovalRequested)]
    assert question.requirement.approvers == ["*"]
    (edit,) = [line for line in ended.timeline.steps if line.name == "edit_file"]
    assert (edit.status, edit.result, [ask.actors for ask in edit.approvals]) == (
        "completed",
        '"settings.toml"',
        [["bob"]],
    )
    assert (scene.made(), "pool_size = 50\n" in scene.settings) == (made, True)
    log.unlink()
    assert scene.read("run", "verify")["ok"]
