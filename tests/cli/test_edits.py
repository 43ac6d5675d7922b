"""An edit is held against the policy before it is sent, as far as that is known here."""

from __future__ import annotations

import pytest

from refold.client.reading.approval import others
from refold.core.approval.policy import Policy
from refold.core.errors import UsageError
from tests.approval.driving import World
from tests.approval.questions import RUN
from tests.approval.test_edited import POLICY, TIERS, asked, edits
from tests.cli.desk import Desk


@pytest.fixture(autouse=True)
def policy(world: World) -> None:
    """Publish the policy, and ask."""
    world.publish(f"policy/{POLICY.digest}", "policy", POLICY.content)
    world.ask(asked())


def test_an_edit_that_the_policy_denies_is_not_sent(world: World, desk: Desk) -> None:
    strict = Policy.parse({"rules": TIERS["rules"][1:]})
    world.publish(f"policy/{strict.digest}", "policy", strict.content)
    question = asked(call=f"{RUN}/9", policy=strict.digest)
    world.ask(question)

    with pytest.raises(UsageError, match="the vote would be void: the rule 'never' denies it: by hand"):
        desk.vote(question, "ada", "edit", args=edits(1_001)["args"])


def test_whom_the_policy_asks_about_an_edit_is_known_before_it_is_sent(desk: Desk) -> None:
    approval = desk.approvals.get(asked().approval_id)

    assert others(approval, edits(100)["args"]) == "2 of role:owner"
    assert [others(approval, edits(times)["args"]) for times in (1, 99, 501)] == ["", "", ""]


def test_an_edit_about_which_others_are_asked_is_decided_as_such(desk: Desk) -> None:
    answer = desk.vote(asked(), "ada", "edit", args=edits(100)["args"])

    assert (answer.what, answer.decision and answer.decision.verdict) == ("decided", "amend")
