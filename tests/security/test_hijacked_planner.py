"""A hijacked planner on a real secured cluster, against services that run as processes with their own credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.secured import SecuredCluster
from tests.security.hijacked_planner import play
from tests.security.stage import Stage


@pytest.mark.long
def test_a_hijacked_planner_gets_no_effect_that_nobody_has_allowed(
    secured_cluster: SecuredCluster, tmp_path: Path
) -> None:
    with Stage(secured_cluster, tmp_path) as stage:
        rows, falls = play(stage), list(stage.falls)

    assert {row.play.what: (row.outcome, row.effects) for row in rows if row.wrong} == {}
    assert falls == []
