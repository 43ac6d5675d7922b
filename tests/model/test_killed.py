"""An agent with a model behind HTTP on a real platform, whose processes are killed in the middle of everything."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import Dev, served
from tests.model.server import Answer, Asked, ModelServer, busy, says, serving, turn, wants
from tests.waiting import eventually

APP = Path(__file__).with_name("app.py")


class Script:
    """What the model answers; `stall` says at which turn it waits, once."""

    def __init__(self) -> None:
        self.stall = -1
        self.answers: tuple[Answer, ...] = ()

    def __call__(self, asked: Asked, count: int) -> Answer:
        answer = self.answers[turn(asked)]
        if turn(asked) == self.stall:
            self.stall = -1
            return Answer(answer.text, answer.calls, stalls=True)
        return answer


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def model(script: Script) -> Iterator[ModelServer]:
    with serving(script) as server:
        yield server


@pytest.fixture(scope="module")
def shop(model: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Give a running platform that serves `app.py`."""
    data = tmp_path_factory.mktemp("thinking")
    (data / "effects").touch()
    with served(APP, data, "--apart", MODEL_URL=model.url, SALES=str(data / "effects")) as running:
        yield running


def kill(shop: Dev, service: str) -> None:
    """Ends all processes of a service as `kill -9` does, and waits for others in their place."""
    before = list(shop.state["processes"][service])
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(now := shop.state["processes"][service]) == len(before) and not set(now) & set(before))


def asked_in(model: ModelServer, word: str) -> list[Asked]:
    return [asked for asked in model.asked if word in str(asked["messages"])]


def test_a_model_is_asked_once_for_each_answer_and_once_more_for_a_kill_during_a_request(
    shop: Dev, model: ModelServer, script: Script
) -> None:
    script.answers, script.stall = (wants("sell", {"item": "egg"}), wants("sell", {"item": "hen"}), says("sold")), 1

    shop.read("run", "start", "shop", "--id", "shop-1", "--input", '{"prompt": "the first order"}')
    eventually(lambda: len(asked_in(model, "the first order")) == 2, what="the second request")
    kill(shop, "executor")
    model.go_on.set()
    ended = eventually(lambda: (found := shop.read("run", "show", "shop-1"))["status"] == "completed" and found)

    assert ended["result"] == "sold"
    answers = [step for step in ended["timeline"] if step["name"] == "shop__model.request"]
    assert len(asked_in(model, "the first order")) == len(answers) + 1
    assert [line.split()[1] for line in (shop.data / "effects").read_text().splitlines()] == ["egg", "hen"]


def test_a_planner_that_is_killed_between_requests_costs_none(shop: Dev, model: ModelServer, script: Script) -> None:
    script.answers, script.stall = (wants("sell", {"item": "owl"}), says("sold")), 1
    model.go_on.clear()

    shop.read("run", "start", "shop", "--id", "shop-2", "--input", '{"prompt": "the second order"}')
    eventually(lambda: len(asked_in(model, "the second order")) == 2, what="the second request")
    kill(shop, "planner")
    model.go_on.set()
    ended = eventually(lambda: (found := shop.read("run", "show", "shop-2"))["status"] == "completed" and found)

    assert ended["result"] == "sold"
    assert len(asked_in(model, "the second order")) == 2


def test_a_model_that_is_busy_is_asked_again_by_the_run(shop: Dev, model: ModelServer, script: Script) -> None:
    tries = iter([busy(after="1"), busy(status=502), says("hello")])
    script.answers = ()
    model.script = lambda asked, count: next(tries)

    ended = shop.read("run", "start", "shop", "--id", "shop-3", "--input", '{"prompt": "the third"}', "--wait")

    assert ended["result"] == "hello"
    attempts = shop.read("run", "show", "shop-3")["timeline"][0]["attempts"]
    assert [each["failure"]["code"] if each.get("failure") else "" for each in attempts[:2]] == [
        "ModelRateLimitError",
        "ModelServerError",
    ]
