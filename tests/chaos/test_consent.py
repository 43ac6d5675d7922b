"""The judge catches every lie about approvals that is planted in a true story."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from refold.core import capability, wire
from refold.core.capability import SigningKey
from refold.core.decision import Cast, Decision
from refold.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallCompleted,
    CallDispatched,
    CallFailed,
    CallProposed,
    Event,
    Failure,
    Requirement,
    RetryPolicy,
    RunCompleted,
    RunRequested,
    RunStarted,
)
from refold.core.messages import ApprovalDecision, ApprovalRequest
from tests.chaos.consent import Papers, key_of
from tests.chaos.judge import Evidence, judge
from tests.chaos.people import Said
from tests.chaos.raw import Raw
from tests.chaos.test_judge import POISON, entries, letter, outcome, truth

KEY, OTHER = (SigningKey(kid, "decision", bytes([number]) * 32) for number, kid in enumerate(("k", "o"), 1))
NEEDED = Requirement(["role:oncall"], quorum=2)
ASKED = ApprovalRequested(1, 1, 1, "p", "two", NEEDED, "dev", "1", "s", "q")
EFFECT = {"run": "r1", "label": "c1", "key": "k", "effect": "once", "applied": True, "value": 1, "waited_ms": 2}
AT_S = 100.0


def args(amount: int) -> str:
    return json.dumps({"amount": amount, "label": "c1", "plan": "ok", "run": "r1"}, separators=(",", ":"))


def decision(verdict: str = "edit", *people: str, key: SigningKey = KEY, amount: int = 7, question: str = "q") -> str:
    """A signed decision of these people, by the votes that are named after them."""
    found = Decision(
        *("r1/4", question, "dev", "r1", "r1/3", 1, "fire", "1", "s", "once", "digest", "k", 1, 1, "p", "proposal"),
        verdict=verdict,  # type: ignore[arg-type]
        edited=args(amount) if verdict == "edit" else "",
        result="-424242" if verdict == "answer" else "",
        message="",
        votes=tuple(Cast(name, "role:oncall", "", f"v-{name}", 1) for name in people or ("ada", "bob")),
        grant=None,
        issued=1,
        expires=2,
        nonce="n",
    )
    return capability.sign(found.payload(), key)


def decided(verdict: str = "edit", token: str = "") -> ApprovalDecided:
    edited = args(7) if verdict == "edit" else ""
    return ApprovalDecided(1, 4, verdict, token=token or decision(verdict), actors=["ada", "bob"], args=edited)


def log(*ruling: Event) -> list[Raw]:
    """The run log: asked in the first entry, ruled in the second, over in the third."""
    call = CallProposed(1, "fire", args(100), "k", "default", "once", 1, RetryPolicy())
    begun: list[Event] = [RunRequested("errand", "{}", "d", "s"), RunStarted(), call, ASKED]
    return entries(begun, list(ruling))


def ruled(verdict: str, token: str = "") -> list[Raw]:
    """A run in which people said so."""
    last: list[Event] = [CallFailed(1, 0, Failure("rejected", "no"))]
    if verdict == "edit":
        last = [CallDispatched(1, 1, 9), CallCompleted(1, 1, "1")]
    elif verdict == "answer":
        last = [CallCompleted(1, 0, "-424242")]
    return log(decided(verdict, token), *last, RunCompleted("[1]"))


def request(value: bool = True) -> Raw:
    ask = ApprovalRequest(
        *("r1/4", "r1", "r1/3", 1, 1, 1, "errand", "rita", "", "dev", "fire", "1", "s", "once", args(100), "k", "p"),
        *("two", NEEDED, "q", "proposal", 1),
    )
    return Raw(0, 0, b"r1/4", wire.encode(ask) if value else None)


def said(verdict: str = "edit", void: str = "") -> dict[str, Said]:
    return {f"v-{name}": Said("r1/4", name, verdict, void) for name in ("ada", "bob", "rita")}


def story(verdict: str = "edit", token: str = "", *, amount: int = 7, at: float = AT_S, **other: Any) -> Evidence:
    """A run with a dangerous call in which nothing is wrong, but for what is said otherwise."""
    token = token or decision(verdict)
    records = [Raw(0, 0, b"r1/4", wire.encode(ApprovalDecision("r1/4", "r1", token)))]
    asked = other.pop("asked", [request(), request(False)])
    papers = Papers(asked, records, other.pop("said", said(verdict)), key_of(KEY.public().x))
    effects = [{**EFFECT, "amount": amount, "at": at}] if verdict == "edit" else []
    run_log = other.pop("run_log", None) or ruled(verdict, token)
    last = outcome(seq=8 if verdict == "edit" else 7)
    given = {"effects": effects, "run_log": run_log, "outcomes": [last], "papers": papers, **other}
    return dataclasses.replace(truth(), **given)


@pytest.mark.parametrize("verdict", ["edit", "reject", "answer"])
def test_a_true_story_of_a_decision_is_clean(verdict: str) -> None:
    found = judge(story(verdict))

    assert found.problems() == {}
    assert found.counts[f"approvals.{verdict}"] == found.counts["approvals"] == 1
    assert found.counts["effects_agreed_to"] == (verdict == "edit")


UNDECIDED = log(CallDispatched(1, 1, 9), CallCompleted(1, 1, "1"), RunCompleted("[1]"))
DONE = [{**EFFECT, "amount": 100, "at": AT_S}]
LIES: dict[str, tuple[Callable[[], Evidence], str]] = {
    "nobody had agreed": (lambda: story(run_log=UNDECIDED), "unauthorised"),
    "the effect came before the decision": (lambda: story(at=0.0005), "unauthorised"),
    "what was sent is what was proposed": (lambda: story(amount=100), "unauthorised"),
    "people had said no": (lambda: story("reject", effects=DONE), "unauthorised"),
    "people had answered": (lambda: story("answer", effects=DONE), "unauthorised"),
    "the question expired": (lambda: story("reject", run_log=ruled("expire"), effects=DONE), "unauthorised"),
    "the answer is another": (
        lambda: story("answer", run_log=log(decided("answer"), CallCompleted(1, 0, "1"), RunCompleted("[1]"))),
        "wrong",
    ),
    "the decision is another key's": (lambda: story(token=decision(key=OTHER)), "wrong"),
    "the decision is on another question": (lambda: story(token=decision(question="x")), "wrong"),
    "one person is no quorum": (lambda: story(token=decision("edit", "ada")), "wrong"),
    "one person counts twice": (lambda: story(token=decision("edit", "ada", "ada")), "wrong"),
    "the requester counts": (lambda: story(token=decision("edit", "ada", "rita")), "wrong"),
    "a void vote counts": (lambda: story(said=said(void="unentitled")), "wrong"),
    "a vote counts that nobody gave": (lambda: story(said={}), "wrong"),
    "a no counts as a yes": (lambda: story(said=said("reject")), "wrong"),
    "the edit is nobody's": (lambda: story(token=decision(amount=8)), "wrong"),
    "the run took another token": (lambda: story(run_log=ruled("edit", decision("edit", "bob", "ada"))), "wrong"),
    "people are still asked": (lambda: story(asked=[request()]), "wrong"),
}


@pytest.mark.parametrize("lie", LIES)
def test_the_judge_catches(lie: str) -> None:
    planted, kind = LIES[lie]

    found = judge(planted())

    assert kind in found.problems()


def test_an_effect_long_after_a_later_no_is_told_from_one_that_was_under_way() -> None:
    yes, no = decided(), ApprovalDecided(1, 4, "reject", token=decision("reject"))
    run_log = log(yes, CallDispatched(1, 1, 9), ASKED, no, CallCompleted(1, 1, "1"), RunCompleted("[1]"))
    soon, late = ({**EFFECT, "amount": 7, "at": at} for at in (5.0, 60.0))

    assert "unauthorised" not in judge(story(run_log=run_log, effects=[soon])).problems()
    assert "unauthorised" in judge(story(run_log=run_log, effects=[late])).problems()


def test_a_void_vote_may_be_a_dead_letter_and_a_good_one_only_when_it_is_late() -> None:
    place = ("approval-voted", 0, 5)

    def found(code: str, void: str) -> bool:
        record = letter(*place)
        spoilt = (record.value or b"").replace(b"\x12malformed", bytes([2 * len(code)]) + code.encode())
        evidence = story(letters=[letter(*POISON), record._replace(value=spoilt)], votes={place: "v-ada"})
        evidence.papers.said = {**evidence.papers.said, "v-ada": Said("r1/4", "ada", "edit", void)}
        return not [text for text in judge(evidence).wrong if "dead letter" in text]

    assert found("late", "")
    assert found("requester", "requester")
    assert not found("requester", "")
    assert not found("unentitled", "requester")
