"""The incident with a kill at every one of its boundaries: what its models are asked, and what it does."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold import App
from refold.contrib.pydantic_ai.entry import ThinkingAgent
from refold.core.events import ApprovalRequested
from refold.testing import AgentRun, crash_matrix, run
from tests.incident.scene import APP


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder of the shop's files."""
    monkeypatch.setenv("INCIDENT_FOLDER", str(tmp_path / "shop"))
    return tmp_path / "shop"


def family(told: AgentRun) -> Iterator[AgentRun]:
    yield told
    for child in told.children:
        yield from family(child)


def answers(told: AgentRun) -> int:
    """How many answers of models are on record."""
    calls = [call for each in family(told) for call in each.calls]
    return sum(call.tool.endswith("__model.request") and call.result is not None for call in calls)


def requests(app: App) -> int:
    """How many requests the models have seen so far."""
    return sum(each.agent.model.asked for each in app.agents.values() if isinstance(each, ThinkingAgent))


def questions(told: AgentRun) -> int:
    return sum(isinstance(event, ApprovalRequested) for each in family(told) for event in each.events)


def test_the_scripts_go_to_a_change_or_to_none(shop: Path) -> None:
    app = App.load(APP)

    changed = run(app, "incident", service="shop")
    shutil.rmtree(shop)
    refused = run(app, "incident", service="shop", decisions={"edit_file": "reject"})

    assert (changed.value.changed, refused.value.changed) == ("settings.toml", "")
    assert (questions(changed), questions(refused)) == (1, 2)
    assert (answers(changed), answers(refused)) == (6, 7)


def test_an_answer_is_paid_once_wherever_something_is_killed(shop: Path) -> None:
    app, paid, asked = App.load(APP), list[tuple[str, int]](), Counter[int]()

    def opened() -> dict[str, Any]:
        shutil.rmtree(shop, ignore_errors=True)
        return {}

    def drive(told: AgentRun) -> None:
        before, dies = requests(app), next(iter(told.executors.kills.values()), "planner")
        told.finish()
        paid.append((dies, requests(app) - before - answers(told)))
        asked[questions(told)] += 1

    def changes() -> int:
        log = shop / "changes.log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    report = crash_matrix(app, "incident", {"service": "shop"}, tools=opened, effects=changes, drive=drive)

    inside = [dies for dies, extra in paid if extra]
    assert {extra for _, extra in paid} == {0, 1}
    assert inside == ["after"] * 6
    assert +report.effects == {"edit_file": 1}
    assert not report.doubts
    assert set(asked) == {1}
