"""`examples/family.py`: children do the work, people decide, and each effect happens once whatever is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold import App, TerminalError
from refold.testing import crash_matrix, run

app = App.load(str(Path(__file__).parents[2] / "examples/family.py"))
BOTH = ["shop", "mail"]


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder that stands for the world."""
    monkeypatch.setenv("WORLD", str(tmp_path))
    return tmp_path


def test_every_service_is_switched_by_a_run_of_its_own() -> None:
    done = run(app, "release", services=BOTH)

    assert sorted(done.value) == sorted(BOTH)
    assert [child.state.run_id for child in done.children] == ["r-1.1", "r-1.2"]
    assert [child.status for child in done.children] == ["completed", "completed"]
    assert done.ran == {"build": 2, "switch": 2}


def test_who_is_rejected_or_fails_holds_up_nobody() -> None:
    rejected = run(app, "release", services=BOTH, decisions={"switch": "reject"})
    scripted = run(app, "release", services=BOTH, agents={"deploy": lambda service: f"{service}-7"})
    failed = run(app, "release", services=BOTH, agents={"deploy": TerminalError("no such service")})

    assert all("not released" in text for text in rejected.value.values())
    assert scripted.value == {"shop": "shop-7", "mail": "mail-7"}
    assert (scripted.children, "no such service" in failed.value["shop"]) == ([], True)


def test_each_effect_happens_once_whatever_is_killed(world: Path) -> None:
    report = crash_matrix(app, "release", {"services": BOTH}, effects=lambda: len(list(world.iterdir())))

    assert (report.effects, report.doubts) == ({"build": 2, "switch": 2}, {})
