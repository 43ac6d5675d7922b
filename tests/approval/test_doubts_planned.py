"""A call in doubt, from the planner that asks what came of it to the votes that say so; and who says so in vain."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from refold.core.events import CallCompleted, CallDispatched, CallFailed, DoubtResolved
from refold.core.ids import home
from refold.core.messages import ApprovalRequest, ToolRequest, ToolResult
from refold.core.run.state import RunState
from refold.core.topics import APPROVAL_REQUESTED, APPROVAL_VOTED
from refold.core.wire import codec
from tests.approval import planning
from tests.approval.driving import PARTITIONS
from tests.approval.planning import Planning

RUN = "run-1"


@pytest.fixture
def desk() -> Planning:
    """Give a planner and an approval service, and a run whose call people have allowed and nobody heard of since."""
    made = Planning(planning.world())
    asked = made.ask(RUN)
    made.world.vote(asked, "ada", "approve")
    made.run()
    fell_in_doubt(made, attempt=1)
    return made


def fell_in_doubt(desk: Planning, *, attempt: int) -> None:
    """An executor declares that nobody knows what came of an attempt."""
    [order] = [each for each in orders(desk) if each.attempt == attempt][-1:]
    said = ToolResult(order.call_id, RUN, 1, attempt, "doubt", executor="e")
    desk.world.write("tool-completed.default", home(RUN, PARTITIONS), order.call_id, codec.encode(said))
    desk.run()


def orders(desk: Planning) -> Iterator[ToolRequest]:
    """What was ordered, in order."""
    for record in desk.world.records("tool-requested.default"):
        if record.value:
            yield codec.decode(ToolRequest, record.value)


def questions(desk: Planning) -> list[ApprovalRequest]:
    """What people were asked, in order."""
    return [codec.decode(ApprovalRequest, each.value) for each in desk.world.records(APPROVAL_REQUESTED) if each.value]


def doubt_of(desk: Planning) -> ApprovalRequest:
    """The question what came of the call, the last one."""
    return [each for each in questions(desk) if each.about == "doubt"][-1]


def alleged(desk: Planning, topic: str, verdict: str) -> tuple[str, int]:
    """What a client or an operator says of the doubt, in somebody's name; returns where it lies."""
    data = {"step": 1, "attempt": 1, "verdict": verdict, "result": "made up"}
    said = {"run_id": RUN, "signal_id": verdict, "kind": "resolve", "data": data, "actor": "ada"}
    return topic, desk.world.write(topic, home(RUN, PARTITIONS), f"{RUN}/{verdict}", json.dumps(said).encode())


def state(desk: Planning) -> RunState:
    return desk.state(RUN)[0]


def test_a_doubt_is_asked_of_the_people_of_the_policy_beside_nothing_else(desk: Planning) -> None:
    asked = doubt_of(desk)

    assert (asked.requirement.approvers, asked.attempt, asked.effect) == (["role:lead"], 2, "once")
    assert [(each.what, each.attempt) for each in asked.history] == [("doubt", 1)]
    assert state(desk).waits_for(1) == asked.approval_id
    assert desk.world.letters() == []


def test_who_says_that_it_happened_gives_the_result(desk: Planning) -> None:
    desk.world.vote(doubt_of(desk), "ada", "answer", result='"saved"')
    desk.run()

    outcome = state(desk).outcomes[1][1]
    assert isinstance(outcome, CallCompleted)
    assert (outcome.result, len(list(orders(desk)))) == ('"saved"', 1)


def test_who_gives_up_fails_the_call(desk: Planning) -> None:
    desk.world.vote(doubt_of(desk), "bob", "reject", message="nobody can tell")
    desk.run()

    outcome = state(desk).outcomes[1][1]
    assert isinstance(outcome, CallFailed)
    assert (outcome.failure.code, len(list(orders(desk)))) == ("given_up", 1)


def test_it_did_not_happen_and_people_still_decide_whether_it_may(desk: Planning) -> None:
    """What came of it is one question, whether it may go out another, and each has an answer of its own."""
    desk.world.vote(doubt_of(desk), "ada", "approve", message="looked")
    desk.run()
    assert len(list(orders(desk))) == 1

    again = questions(desk)[-1]
    assert (again.about, again.rule, again.attempt) == ("", "one", 2)
    assert [each.what for each in again.history] == ["doubt", "did_not_happen"]
    desk.world.vote(again, "bob", "approve", at=2)
    desk.run()

    first, second = orders(desk)
    assert (first.attempt, first.settled, second.attempt) == (1, "", 2)
    assert "" not in (second.settled, second.decision)
    assert second.settled != second.decision


def test_what_nobody_may_say_leaves_the_call_in_doubt(desk: Planning) -> None:
    asked = doubt_of(desk)
    before = desk.state(RUN)[1]

    wrong = desk.world.vote(asked, "ada", "answer", result="7")
    alien = desk.world.vote(asked, "dan", "approve")
    words = [
        alleged(desk, topic, verdict)
        for topic in ("run-signalled", "run-operated")
        for verdict in ("did_not_happen", "happened", "give_up")
    ]
    desk.run()

    assert desk.state(RUN)[1] == before
    assert {(APPROVAL_VOTED, wrong, "edit_not_possible"), (APPROVAL_VOTED, alien, "unentitled")} < set(
        desk.world.letters()
    )
    assert set(words) < {letter[:2] for letter in desk.world.letters()}
    assert len(list(orders(desk))) == 1


def test_every_doubt_is_a_question_of_its_own(desk: Planning) -> None:
    """What was said of the first attempt is not said of the second one."""
    first = doubt_of(desk)
    desk.world.vote(first, "ada", "approve")
    desk.run()
    desk.world.vote(questions(desk)[-1], "bob", "approve", at=2)
    desk.run()
    fell_in_doubt(desk, attempt=2)

    second = doubt_of(desk)
    assert (second.attempt, second.approval_id == first.approval_id) == (3, False)
    assert [each.what for each in second.history] == ["doubt", "did_not_happen", "doubt"]
    desk.world.vote(first, "ada", "approve", at=3)
    desk.run()

    events = desk.state(RUN)[1]
    assert [each.attempt for each in events if isinstance(each, DoubtResolved)] == [1]
    assert [each.attempt for each in events if isinstance(each, CallDispatched)] == [1, 2]
