"""What judges programs on real clusters: it has nothing to say of good logs, and finds what is planted in them."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.topics import RUN_LOG
from tests.chaos.app import arguments
from tests.chaos.programs import families, objections
from tests.chaos.raw import Raw
from tests.simulator.case import Case
from tests.simulator.workload.programs import program_schedule


def _log(seed: int) -> list[Raw]:
    """The run log of a simulated case, as a cluster would have it."""
    case = Case(*program_schedule(seed))
    case.run(traced=False)
    logs = [case.world.broker.log(RUN_LOG, partition).records for partition in range(case.world.settings.partitions)]
    return [Raw(r.partition, r.offset, r.key or b"", r.value) for log in logs for r in log]


def test_good_logs_are_not_objected_to_and_short_ones_are() -> None:
    short = 0
    for seed in range(60):
        log = _log(seed)
        problems, counts = objections(log, lambda run, tool, n: {"n": n})
        assert problems == []
        assert counts["programs"] > 0
        short += bool(objections(log, lambda run, tool, n: {"n": n + 1})[0])

    assert short > 20, "a call with other arguments is another call"


def _entry(run: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"run_id": run, "at_ms": 1, "events": [(kind, fields)]}


_ASKED = {"agent": "program", "input": "{}"}
_FAMILY = [
    _entry("r", "ChildStarted", step=1, **_ASKED),
    _entry("r.1", "RunRequested", **_ASKED),
    _entry("r.1", "RunCompleted", result="7"),
    _entry("r", "ChildCompleted", step=1, status="completed", result="7"),
]


def test_a_family_as_it_should_be_is_not_objected_to() -> None:
    assert list(families(_FAMILY)) == []


@pytest.mark.parametrize(("result", "found"), [("7", []), ("8", ["f was told that f.1 is completed with 8"])])
def test_a_fork_keeps_what_came_of_a_child_of_its_source(result: str, found: list[str]) -> None:
    kept = [
        _entry("f", "RunRequested", **_ASKED, forked={"lineage": ["r"]}),
        _entry("f", "ChildStarted", step=1, **_ASKED),
        _entry("f", "ChildCompleted", step=1, status="completed", result=result),
    ]

    assert [each.partition(", and")[0] for each in families([*_FAMILY, *kept])] == found


@pytest.mark.parametrize(
    ("place", "instead", "what"),
    [
        (0, _entry("r", "ChildStarted", step=2, **_ASKED), "r.1 was started by nobody"),
        (1, _entry("r.1", "RunRequested", agent="other", input="{}"), "r.1 is not what its parent has started"),
        (2, _entry("r.1", "RunFailed"), "r was told that r.1 is completed"),
        (3, _entry("r", "ChildCompleted", step=1, status="completed", result="8"), "r was told that r.1 is completed"),
    ],
)
def test_a_lie_about_a_family_is_found(place: int, instead: dict[str, Any], what: str) -> None:
    (found,) = families([*_FAMILY[:place], instead, *_FAMILY[place + 1 :]])

    assert found.startswith(what)


def test_what_a_program_gives_its_tools_is_the_same_everywhere() -> None:
    assert arguments("r1", "stamp", 3) == arguments("r1", "stamp", 3)
    assert arguments("r1", "risky_stamp", 3)["label"].startswith("c3-")
