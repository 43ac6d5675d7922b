"""`examples/orchestrator.py`: one worker fails, and the report has what the others found."""

from __future__ import annotations

from pathlib import Path

from refold import App, TerminalError
from refold.testing import crash_matrix, run

app = App.load(str(Path(__file__).parents[2] / "examples/orchestrator.py"))
TOPICS = ["tides", "dragons", "winds"]


def search(topic: str) -> str:
    if topic == "dragons":
        raise TerminalError("there are none")
    return f"all about {topic}"


def test_what_one_worker_has_not_found_is_missing_and_the_rest_is_there() -> None:
    done = run(app, "report", tools={"search": search}, topics=TOPICS)

    assert done.value == {"found": ["all about tides", "all about winds"], "missing": ["dragons"]}
    assert [child.status for child in done.children] == ["completed", "failed", "completed"]


def test_workers_may_be_scripted() -> None:
    done = run(app, "report", agents={"worker": "something"}, topics=TOPICS)

    assert (done.value["found"], done.ran) == (["something"] * 3, {})


def test_it_ends_the_same_whatever_is_killed() -> None:
    report = crash_matrix(app, "report", {"topics": TOPICS}, tools={"search": search})

    assert (report.ok, report.doubts) == (True, {})
