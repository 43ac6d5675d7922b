"""A hijacked planner on a real secured cluster, against services that run as processes with their own credentials."""

from __future__ import annotations

from pathlib import Path

from tests.kafka.secured import SecuredCluster
from tests.security.hijacked_planner import play
from tests.security.stage import Stage

HOLES = {
    "the same, as what the policy falls back to",
    "by a rule that is about another tool",
    "by a policy that nobody knows",
    "by no policy at all",
    "a softer question once one vote is there",
}
"""What is known to get through: the approval service takes the planner's word for which rule has judged a call. All
need somebody with a login who is in league with the attacker. Whoever closes one takes it off this list."""


def test_a_hijacked_planner_gets_no_effect_that_nobody_has_allowed(
    secured_cluster: SecuredCluster, tmp_path: Path
) -> None:
    with Stage(secured_cluster, tmp_path) as stage:
        rows, falls = play(stage), list(stage.falls)

    assert {row.play.what: (row.outcome, row.effects) for row in rows if row.wrong and row.play.what not in HOLES} == {}
    assert {row.play.what for row in rows if row.wrong} == HOLES
    assert falls == []
