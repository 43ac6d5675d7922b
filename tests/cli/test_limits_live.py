"""A limit per day on a real platform: shared by runs of several homes, and known to who follows a killed planner."""

from __future__ import annotations

from typing import Any

from refold.core.ids import home
from tests.cli.terminal import Dev
from tests.waiting import eventually

PARTITIONS = 4
"""What a platform has that says nothing else."""

TENANT = "--label", "tenant=live"


def spent(dev: Dev) -> Any:
    """What the platform says that the tenant has spent today."""
    return next(iter(dev.read("limits", "--agent", "bounded", "--value", "live")), None)


def calls(dev: Dev) -> int:
    """How many calls that is."""
    return int(found["spent"]["calls"]) if (found := spent(dev)) else 0


def test_a_limit_outlives_planners_that_are_killed(dev: Dev) -> None:
    first = next(f"limit-{n}" for n in range(99) if home(f"limit-{n}", PARTITIONS) == 0)
    other = next(f"limit-{n}" for n in range(99) if home(f"limit-{n}", PARTITIONS) != 0)
    dev.read("run", "start", "bounded", "--id", first, "--input", '{"count": 4}', *TENANT, "--wait")
    eventually(lambda: calls(dev) == 4)

    dev.kill("planner")
    failed = dev.read("run", "start", "bounded", "--id", other, "--input", '{"count": 9}', *TENANT, "--wait", code=1)

    assert failed["failure"]["code"] == "limit_calls"
    assert len(dev.effects(other)) == 3
    eventually(lambda: calls(dev) == 7)
    assert (spent(dev)["reached"], spent(dev)["limits"]["calls"]) == ("hard", 7)
    assert "7 of 7" in dev.refold("limits").stdout
