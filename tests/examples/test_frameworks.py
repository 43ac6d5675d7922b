"""`openai_agents.py` and `langgraph_review.py` of the examples: frameworks on the run log, which know nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from refold import App, NotDone, TerminalError
from refold.core.run.state import RunState
from refold.testing import assert_called, attempts, crash_matrix, run, start

EXAMPLES = Path(__file__).parents[2] / "examples"
TRAVEL, REVIEWS = "openai_agents.py", "langgraph_review.py"
BOTH: list[Any] = [
    pytest.param(TRAVEL, "travel", {"wish": "somewhere warm"}, id="openai-agents"),
    pytest.param(REVIEWS, "review", {"topic": "otters"}, id="langgraph"),
]
AGAIN = (
    "import sys; from refold import App; from refold.testing import replay; replay(App.load(sys.argv[1]), sys.argv[2])"
)


@cache
def loaded(file: str) -> App:
    """An example, loaded by the first test that needs it: its framework takes two seconds to import."""
    return App.load(str(EXAMPLES / file))


@pytest.fixture
def app(file: str) -> App:
    """Give the example of a test that is made for both."""
    return loaded(file)


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder that stands for the world."""
    folder = tmp_path / "world"
    folder.mkdir()
    for name in ("BOOKINGS", "WORLD"):
        monkeypatch.setenv(name, str(folder))
    return folder


def test_an_agent_of_the_openai_sdk_asks_its_tools_at_once_and_books() -> None:
    done = run(loaded(TRAVEL), "travel", wish="somewhere warm")

    assert done.value.startswith("You are booked: Porto")
    assert done.ran == {"ask_model": 3, "weather": 2, "book": 1}
    assert_called(done, "book", {"city": "Porto"}, times=1)


def test_a_graph_goes_round_until_no_reader_objects() -> None:
    done = run(loaded(REVIEWS), "review", topic="otters")

    assert (done.value["version"], len(done.value["remarks"])) == (2, 3)
    assert done.ran == {"ask_model": 8, "publish": 1}


@pytest.mark.parametrize(("file", "agent", "inputs"), BOTH)
def test_calls_at_once_may_end_in_any_order(app: App, agent: str, inputs: Mapping[str, Any]) -> None:
    usual, otherwise = run(app, agent, **inputs), start(app, agent, **inputs)

    otherwise.finish(pick=max)

    assert otherwise.value == usual.value
    assert otherwise.ran == usual.ran
    assert ended(otherwise.state) != ended(usual.state)


def ended(state: RunState) -> list[int]:
    """The steps in the order in which they were over."""
    return list(state.outcomes)


@pytest.mark.parametrize(("file", "agent", "inputs"), BOTH)
def test_each_effect_happens_once_whatever_is_killed(
    app: App, agent: str, inputs: Mapping[str, Any], world: Path
) -> None:
    report = crash_matrix(app, agent, inputs, effects=lambda: len(list(world.iterdir())))

    assert sum(report.effects.values()) == 1
    assert not report.doubts


@pytest.mark.parametrize(("file", "agent", "inputs"), BOTH)
def test_a_model_that_is_busy_is_asked_again_and_one_that_is_gone_ends_the_run(
    app: App, agent: str, inputs: Mapping[str, Any]
) -> None:
    answer = run(app, agent, **inputs).calls[0].result
    busy = run(app, agent, tools={"ask_model": attempts(NotDone("busy"), answer, TerminalError("gone"))}, **inputs)

    assert busy.calls[0].attempts == 2
    assert busy.failure is not None
    assert "gone" in busy.failure.message


@pytest.mark.parametrize(("file", "agent", "inputs"), BOTH)
def test_another_process_with_another_hash_seed_decides_the_same(
    app: App, file: str, agent: str, inputs: Mapping[str, Any], tmp_path: Path
) -> None:
    kept = tmp_path / "history.json"
    run(app, agent, **inputs).save(kept)

    command = [sys.executable, "-c", AGAIN, str(EXAMPLES / file), str(kept)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": "31337"}, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stderr


def test_the_version_of_the_framework_belongs_to_that_of_the_agent() -> None:
    assert "+agents0." in loaded(TRAVEL).agents["travel"].version
    assert "+langgraph1." in loaded(REVIEWS).agents["review"].version
