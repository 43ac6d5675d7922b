"""The doctor says when a platform has more partitions than its planners can use."""

from __future__ import annotations

import pytest

from refold.cli.commands.doctor import PARTITIONS_EACH, crowded


@pytest.mark.parametrize(
    ("partitions", "planners", "warned"),
    [(4, 1, 0), (PARTITIONS_EACH, 1, 0), (60, 1, 1), (60, 4, 0), (120, 7, 1), (120, 0, 0)],
)
def test_more_partitions_than_planners_can_use_are_named(partitions: int, planners: int, warned: int) -> None:
    found = list(crowded(partitions, planners))

    assert [weight for weight, _ in found] == ["warning"] * warned
    assert all(f"{partitions} partitions" in what for _, what in found)
