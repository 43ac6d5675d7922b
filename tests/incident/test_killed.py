"""The incident from its first line to its summary, with planner, executor and approval service killed in every gap."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator

import pytest

from refold.client.reading.history import Run
from refold.core.errors import UsageError
from refold.core.events import ApprovalDecided, ApprovalRequested, CallFailed, CallProposed, Event, RunCompleted
from tests.incident.models import Scripts
from tests.incident.scene import EXAMPLE, ROOT, Scene, answer
from tests.model.server import ModelServer, serving
from tests.waiting import eventually

ROUNDS = int(os.environ.get("INCIDENT_ROUNDS", "5"))
"""So often all four processes are killed while a question is open. There are two: 5 rounds are 40 kills and more, none
of them during a request to a model."""
NO = "50 is more than the database allows"


MODELS = "__model.request"


@pytest.fixture(scope="module")
def provider() -> Iterator[ModelServer]:
    """Give the provider of the incident's models."""
    with serving(Scripts()) as server:
        yield server


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, provider: ModelServer) -> Iterator[Scene]:
    """Give a running platform for the incident."""
    found = Scene(tmp_path_factory.mktemp("incident"), provider.url)
    with found.stack:
        found.open()
        yield found


def answers(*runs: Run) -> int:
    """How many answers of models are on record."""
    steps = [line for run in runs for line in run.timeline.steps]
    return sum(line.name.endswith(MODELS) and line.status == "completed" for line in steps)


def start(scene: Scene, run: str) -> None:
    """Asks for the run, and kills everything before anybody can have begun much."""
    scene.ask(run)
    scene.kill()


def events(run: Run) -> list[Event]:
    """The accepted events of a run."""
    return [event for judged in run.records if judged.entry for event in judged.entry.events]


@pytest.mark.campaign  # two minutes; of each fault there are others, and each boundary in memory
def test_people_decide_on_the_change_and_it_is_made_once_whatever_is_killed(
    scene: Scene, provider: ModelServer
) -> None:
    start(scene, "i-1")
    analyst, coder = scene.watch("i-1.1"), scene.watch("i-1.3")
    analyst.completed("query_log")
    scene.kill()
    coder.completed("read_file", 2)
    scene.kill()
    rounds = 3  # in which a model may have been asked, and its answer lost

    first = coder.asked()
    asked, kills = len(provider.asked), scene.kills
    scene.kill_again(ROUNDS)
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

    second = coder.asked(2)
    scene.kill_again(ROUNDS)
    scene.wait_asked(second)
    args = json.loads(scene.read("approval", "show", second)["request"]["args"])
    wanted = {**args, "after": args["after"].replace("pool_size = 20", "pool_size = 12")}
    with scene.down("executor"):
        with scene.down("approval"):
            ada = scene.terminal(
                "approval", "approve", second, "--args", json.dumps(wanted), "--actor", "ada", "--timeout", "60"
            )
            scene.wait_votes(second, 1)
            scene.kill("planner")
        assert answer(ada)["what"] == "decided"
        coder.decided("amend")
        scene.kill("planner", "approval")
        assert "pool_size = 5\n" in scene.settings
        assert (len(provider.asked) - asked, scene.kills - kills >= 8 * ROUNDS) == (
            1,
            True,
        )  # the coder heard of the "no"
    third = coder.asked(3)
    scene.wait_asked(third)
    scene.vote(third, "dan", "approve")
    eventually(scene.changes, within=60, what="the change on disk")
    scene.kill()
    rounds += 1
    made = scene.made()
    ended = scene.watch("i-1").over()
    family = [ended, analyst.over(), coder.over()]
    assert answers(*family) == 2 + 4 + 1
    assert 0 <= len(provider.asked) - answers(*family) <= rounds

    report = json.loads(next(event.result for event in events(ended) if isinstance(event, RunCompleted)))
    assert (report["cause"], report["changed"]) == ("PoolTimeout", "settings.toml")
    told = events(family[2])
    proposed = [event.args for event in told if isinstance(event, CallProposed) and event.tool == "edit_file"]
    assert [size for text in proposed for size in (50, 20) if f"pool_size = {size}\\n" in text] == [50, 20]
    decided = [event for event in told if isinstance(event, ApprovalDecided)]
    assert [(event.verdict, event.actors) for event in decided] == [
        ("reject", ["ada"]),
        ("amend", ["ada"]),
        ("approve", ["dan"]),
    ]
    assert json.loads(decided[1].args) == wanted
    assert [event.failure.code for event in told if isinstance(event, CallFailed)] == ["rejected"]
    assert [event.failure.message for event in told if isinstance(event, CallFailed)] == [NO]
    assert (scene.made(), scene.changes()) == (made, ["settings.toml"])
    assert scene.settings == wanted["after"]
    assert [letter["code"] for letter in scene.read("deadletter", "list")] == ["requester", "unentitled"]
    assert scene.read("verify")["ok"]


@pytest.mark.long
def test_the_default_policy_asks_too_and_an_edit_of_an_executor_that_died_before_it_told_is_not_made_again(
    scene: Scene, provider: ModelServer
) -> None:
    shutil.rmtree(scene.shop, ignore_errors=True)
    shutil.copytree(EXAMPLE / "shop", scene.shop)  # the models' script begins with it
    log, before, requests = scene.shop / "changes.log", scene.settings, len(provider.asked)
    os.mkfifo(log)  # whoever notes a change waits here for a reader: the file is changed, and nobody has said so
    scene.read("policy", "publish", str(ROOT / "infra" / "default-policy.yaml"))
    scene.ask("i-2")
    watch = scene.watch("i-2.3")
    asked = watch.asked()
    scene.wait_asked(asked)

    assert answer(scene.terminal("approval", "approve", asked, "--actor", "bob"))["what"] == "decided"
    eventually(lambda: scene.settings != before, within=60, what="the change on disk")
    made = scene.made()
    scene.kill("executor")  # that for models has nothing to do by then
    ended, whole = watch.over(), scene.watch("i-2").over()

    (question,) = [event for event in events(ended) if isinstance(event, ApprovalRequested)]
    assert question.requirement.approvers == ["*"]
    (edit,) = [line for line in ended.timeline.steps if line.name == "edit_file"]
    assert (edit.status, edit.result, [ask.actors for ask in edit.approvals]) == (
        "completed",
        '"settings.toml"',
        [["bob"]],
    )
    assert (scene.made(), "pool_size = 50\n" in scene.settings) == (made, True)
    assert len(provider.asked) - requests == answers(whole, scene.watch("i-2.1").over(), ended) == 2 + 3 + 1
    log.unlink()
    assert scene.read("verify")["ok"]
