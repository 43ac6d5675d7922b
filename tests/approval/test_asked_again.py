"""A planner that was stopped before it could ask does so when it goes on, and the question is closed by then."""

from __future__ import annotations

import pytest

from refold.core.messages import ApprovalRequest
from tests.approval import planning
from tests.approval.driving import Process
from tests.approval.planning import Planning


def asked_late(desk: Planning, request: ApprovalRequest) -> None:
    """What a stopped planner writes behind its successor's tombstone."""
    desk.world.ask(request)
    desk.run()


def is_open(desk: Planning, request: ApprovalRequest) -> bool:
    """Whether the topic of questions, compacted, still has this one."""
    last = {record.key: record.value for record in desk.world.records("approval-requested")}
    return last[request.approval_id.encode()] is not None


@pytest.mark.parametrize("verdict", ["approve", "reject"])
def test_a_closed_question_that_is_asked_again_is_closed_again(verdict: str) -> None:
    desk = Planning(planning.world())
    request = desk.ask()
    desk.world.vote(request, "ada", verdict)
    desk.run()
    assert not is_open(desk, request)
    _, before = desk.state()

    asked_late(desk, request)

    assert not is_open(desk, request)
    assert desk.state()[1] == before
    assert desk.world.letters() == []


def test_a_successor_closes_what_was_asked_again_while_nobody_was_there() -> None:
    desk = Planning(planning.world())
    request = desk.ask()
    desk.world.vote(request, "ada")
    desk.run()
    desk.world.broker.expire("refold-approval", "a")
    desk.world.ask(request)
    assert is_open(desk, request)

    desk.approval = Process(desk.world, "b", app_=planning.app)
    desk.run()

    assert not is_open(desk, request)
