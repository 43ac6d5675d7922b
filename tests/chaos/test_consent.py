"""The judge catches every lie about approvals that is planted in a true story."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from refold.core.approval import signature
from refold.core.approval.decision import Cast, Decision, Grant
from refold.core.approval.signature import SigningKey
from refold.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    AttemptFailed,
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
from refold.core.wire import codec
from tests.chaos.consent import Papers, key_of
from tests.chaos.judge import Evidence, judge
from tests.chaos.people import Said
from tests.chaos.raw import Raw
from tests.chaos.rules import GRACE_MS, Decree
from tests.chaos.test_judge import POISON, dated, entries, letter, outcome, truth

KEY, OTHER = (SigningKey(kid, "decision", bytes([number]) * 32) for number, kid in enumerate(("k", "o"), 1))
NEEDED = Requirement(["role:oncall"], quorum=2)
ASKED = ApprovalRequested(1, 1, 1, "p", "two", NEEDED, "dev", "1", "s", "q")
EFFECT = {"run": "r1", "label": "c1", "key": "k", "effect": "once", "applied": True, "value": 1, "waited_ms": 2}
EDITED: dict[str, Any] = {**EFFECT, "key": "k7", "amount": 7}
AT_S = 100.0
GRANT = Grant("r1/4", "run", until_ms=50_000, uses=2, use=0, rule="two")


def args(amount: int) -> str:
    return json.dumps({"amount": amount, "label": "c1", "plan": "ok", "run": "r1"}, separators=(",", ":"))


def decision(
    verdict: str = "edit", *people: str, key: SigningKey = KEY, amount: int = 7, question: str = "q", **other: Any
) -> str:
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
    return signature.sign(dataclasses.replace(found, **other).payload(), key)


def decided(verdict: str = "edit", token: str = "") -> ApprovalDecided:
    edited = {"args": args(7), "key": EDITED["key"]} if verdict == "edit" else {}
    return ApprovalDecided(1, 4, verdict, token=token or decision(verdict), actors=["ada", "bob"], **edited)


def call(step: int = 1, key: str = "k") -> CallProposed:
    return CallProposed(step, "fire", args(100), key, "default", "once", 1, RetryPolicy())


def dateless(records: list[Raw]) -> list[Raw]:
    """Records of which the broker says no time: how long after its end a call was begun is not judged here."""
    return dated(records, *(0 for _ in records))


def log(*ruling: Event, asked: ApprovalRequested = ASKED) -> list[Raw]:
    """The run log: asked in the first entry, ruled and over in the second."""
    begun: list[Event] = [RunRequested("errand", "{}", "d", "s"), RunStarted(), call(), asked]
    return dateless(entries(begun, list(ruling)))


def ruled(verdict: str, token: str = "") -> list[Raw]:
    """A run in which people said so."""
    last: list[Event] = [CallFailed(1, 0, Failure("rejected", "no"))]
    if verdict == "edit":
        last = [CallDispatched(1, 1, 9), CallCompleted(1, 1, "1")]
    elif verdict == "answer":
        last = [CallCompleted(1, 0, "-424242")]
    return log(decided(verdict, token), *last, RunCompleted("[1]"))


def request(value: bool = True, name: str = "r1/4", amount: int = 100) -> Raw:
    ask = ApprovalRequest(
        *(name, "r1", "r1/3", 1, 1, 1, "errand", "rita", "", "dev", "fire", "1", "s", "once", args(amount), "k", "p"),
        *("two", NEEDED, "q", "proposal", 1),
    )
    return Raw(0, 0, name.encode(), codec.encode(ask) if value else None)


def said(verdict: str = "edit", void: str = "", *, uses: int = 0) -> dict[str, Said]:
    people = ("ada", "bob", "cleo", "rita")
    return {f"v-{name}": Said("r1/4", name, verdict, void, uses, 50_000 if uses else 0) for name in people}


def story(verdict: str = "edit", token: str = "", *, amount: int = 7, at: float = AT_S, **other: Any) -> Evidence:
    """A run with a dangerous call in which nothing is wrong, but for what is said otherwise."""
    token = token or decision(verdict)
    records = [Raw(0, 0, b"r1/4", codec.encode(ApprovalDecision("r1/4", "r1", token)), at_ms=other.pop("appended", 0))]
    asked = other.pop("asked", [request(), request(False)])
    meant, decrees = other.pop("said", said(verdict)), other.pop("decrees", ())
    papers = Papers(asked, records, meant, key_of(KEY.public().x), decrees)
    effects = [{**EDITED, "amount": amount, "at": at}] if verdict == "edit" else []
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
    "nobody had agreed": (lambda: story(run_log=UNDECIDED, effects=DONE), "unauthorised"),
    "the effect came before the decision": (lambda: story(at=0.0005), "unauthorised"),
    "what was sent is what was proposed": (lambda: story(amount=100), "unauthorised"),
    "what was sent has the key of what was proposed": (
        lambda: story(effects=[{**EDITED, "key": "k", "at": AT_S}]),
        "twice",
    ),
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
    "one of two equal calls had its effect twice": (lambda: granted(1, more=(2,)), "twice"),
}


@pytest.mark.parametrize("lie", LIES)
def test_the_judge_catches(lie: str) -> None:
    planted, kind = LIES[lie]

    found = judge(planted())

    assert kind in found.problems()


def test_an_effect_long_after_a_later_no_is_told_from_one_that_was_under_way() -> None:
    yes, no = decided(), ApprovalDecided(1, 4, "reject", token=decision("reject"))
    run_log = log(yes, CallDispatched(1, 1, 9), ASKED, no, CallCompleted(1, 1, "1"), RunCompleted("[1]"))
    soon, late = ({**EDITED, "at": at} for at in (5.0, 60.0))

    assert "unauthorised" not in judge(story(run_log=run_log, effects=[soon])).problems()
    assert "unauthorised" in judge(story(run_log=run_log, effects=[late])).problems()


def test_a_void_vote_may_be_a_dead_letter_and_a_good_one_only_when_it_is_late() -> None:
    place = ("approval-voted", 0, 5)

    def found(code: str, void: str, gone: str = "", begun_ms: int = 0, appended_ms: int = 0) -> bool:
        record = letter(*place)._replace(at_ms=appended_ms)
        unreadable_result = (record.value or b"").replace(b"\x12malformed", bytes([2 * len(code)]) + code.encode())
        evidence = story(letters=[letter(*POISON), record._replace(value=unreadable_result)], votes={place: "v-ada"})
        evidence.papers.said = {**evidence.papers.said, "v-ada": Said("r1/4", "ada", "edit", void)}
        evidence.papers.decrees = [Decree("roles", gone, begun_ms, begun_ms + 2)]
        return not [text for text in judge(evidence).wrong if "dead letter" in text]

    assert found("late", "")
    assert found("requester", "requester")
    assert not found("requester", "")
    assert not found("unentitled", "requester")
    assert found("unentitled", "", gone="ada")
    assert not found("unentitled", "", gone="bob")
    assert found("unentitled", "", gone="ada", begun_ms=5_000, appended_ms=6_000), "it waited for a service"
    assert not found("unentitled", "", gone="ada", begun_ms=5_000, appended_ms=4_000)
    assert not found("unauthorised", "", gone="ada")


def granted(
    *uses: int, given: Grant = GRANT, issued: int = 10, amount: int = 100, more: tuple[int, ...] = (), **other: Any
) -> Evidence:
    """A run that makes its call once more for each of these uses of what people had agreed to the first time.

    `more` are the calls that have their effect a second time.
    """
    names = [f"r1/{4 + 5 * number}" for number in range(len(uses) + 1)]
    tokens = [decision("approve", grant=given)]
    for name, use in zip(names[1:], uses, strict=True):
        tokens.append(decision("approve", approval=name, grant=given._replace(use=use), issued=issued))
    parts: list[list[Event]] = [[RunRequested("errand", "{}", "d", "s"), RunStarted(), call(1, "k1"), ASKED]]
    for step, token in enumerate(tokens, 1):
        taken = ApprovalDecided(step, 5 * step - 1, "approve", token=token)
        parts.append([taken, CallDispatched(step, 1, 9), CallCompleted(step, 1, str(step))])
        if step < len(tokens):
            parts[-1] += [call(step + 1, f"k{step + 1}"), dataclasses.replace(ASKED, step=step + 1)]
    parts[-1].append(RunCompleted("[1]"))
    decided_now = zip(names, tokens, strict=True)
    records = [
        Raw(0, 0, name.encode(), codec.encode(ApprovalDecision(name, "r1", token))) for name, token in decided_now
    ]
    asked = [request(), *(request(name=name, amount=amount) for name in names[1:])]
    meant = other.pop("said", said("approve", uses=2))
    papers = Papers(asked + [request(False, name) for name in names], records, meant, key_of(KEY.public().x))
    steps = [*range(1, len(names) + 1), *more]
    lines = [{**EFFECT, "key": f"k{step}", "value": step, "amount": 100, "at": AT_S} for step in steps]
    seq = sum(len(part) for part in parts)
    return truth(effects=lines, run_log=dateless(entries(*parts)), outcomes=[outcome(seq=seq)], papers=papers, **other)


def test_a_true_story_of_a_call_that_passes_again_is_clean() -> None:
    found = judge(granted(1, 2))

    assert found.problems() == {}
    assert (found.counts["grants_given"], found.counts["grants_used"]) == (1, 2)
    assert found.counts["effects_agreed_to"] == 3


ONE_ALONE = {**said("approve", uses=2), "v-bob": Said("r1/4", "bob", "approve")}
OTHERWISE = {name: dataclasses.replace(vote, approval="r1/2") for name, vote in said("approve", uses=2).items()}
TAKEN: dict[str, tuple[Callable[[], Evidence], str]] = {
    "nobody meant it to be remembered": (lambda: granted(1, said=said("approve")), "one call alone"),
    "one of two meant it to be remembered": (lambda: granted(1, said=ONE_ALONE), "one call alone"),
    "the grant is another's": (lambda: granted(1, given=GRANT._replace(id="r1/2")), "rests on the vote v-ada"),
    "nobody was asked for the grant": (
        lambda: granted(1, given=GRANT._replace(id="r1/2"), said=OTHERWISE),
        "for an agreement to this",
    ),
    "the grant is on other arguments": (lambda: granted(1, amount=101), "for an agreement to this"),
    "the grant had ended": (lambda: granted(1, issued=50_000), "after the grant's end"),
    "the grant lasts longer than it was meant to": (
        lambda: granted(1, given=GRANT._replace(until_ms=50_001)),
        "remembers more than",
    ),
    "the grant is good for more than it was meant to": (
        lambda: granted(1, given=GRANT._replace(uses=3)),
        "remembers more than",
    ),
    "the grant is wider than it was meant to": (
        lambda: granted(1, given=GRANT._replace(scope="session")),
        "one call alone",
    ),
    "the grant is used too often": (lambda: granted(1, 2, 3), "is use 3 of 2"),
    "two calls are the same use": (lambda: granted(1, 1), "is use 1 of r1/4, and so is"),
    "a use gives another grant": (lambda: granted(0), "in another's name"),
}


@pytest.mark.parametrize("lie", TAKEN)
def test_the_judge_catches_a_use_of_what_people_have_not_agreed_to(lie: str) -> None:
    planted, why = TAKEN[lie]

    found = judge(planted())

    assert [text for text in found.wrong if why in text]


GONE, STRICT = Decree("roles", "ada", 20_000, 21_000), Decree("current", "strict", 20_000, 21_000)
BACK = 90_000, 91_000
THREE = decision("edit", "ada", "bob", "cleo")


def again(*people: str, policy: str = "p") -> Evidence:
    """A run in which these people have decided since, asked by this policy."""
    asked, token = dataclasses.replace(ASKED, policy=policy), decision("edit", *people)
    last: list[Event] = [decided(token=token), CallDispatched(1, 2, 9), CallCompleted(1, 2, "1"), RunCompleted("[1]")]
    first: list[Event] = [decided(), CallDispatched(1, 1, 9), asked]
    evidence = story(run_log=log(*first, *last), outcomes=[outcome(seq=11)])
    evidence.papers.decided.append(Raw(0, 1, b"r1/4", codec.encode(ApprovalDecision("r1/4", "r1", token))))
    return evidence


DECREED: dict[str, tuple[Callable[[], Evidence], list[Decree], bool]] = {
    "a needed approver was revoked": (story, [GONE], False),
    "an approver was revoked whom nobody needed": (lambda: story(token=THREE), [GONE], True),
    "an approver was revoked a moment ago": (lambda: story(at=33.0), [GONE], True),
    "an approver may decide again": (story, [GONE, Decree("roles", "", *BACK)], True),
    "somebody else was revoked": (story, [dataclasses.replace(GONE, what="cleo")], True),
    "others have decided since": (lambda: again("bob", "cleo"), [GONE], True),
    "the same have decided since": (lambda: again("bob", "ada"), [GONE], False),
    "a policy has not asked anew": (story, [STRICT], False),
    "a policy has not asked anew yet": (lambda: story(at=33.0), [STRICT], True),
    "the old policy is in force again": (story, [STRICT, Decree("current", "", *BACK)], True),
    "the policy has asked anew": (lambda: again("ada", "bob", policy="strict"), [STRICT], True),
    "it has asked anew, and one was revoked": (lambda: again("ada", "bob", policy="strict"), [STRICT, GONE], False),
}


@pytest.mark.parametrize("case", DECREED)
def test_an_effect_goes_by_what_is_decreed(case: str) -> None:
    planted, decrees, clean = DECREED[case]
    evidence = planted()
    evidence.papers.decrees = decrees

    found = judge(evidence).problems()

    assert found.keys() == (set() if clean else {"unauthorised"})


LONG_AGO = -GRACE_MS - 1_000, -GRACE_MS - 500
"""Every entry of these logs is of the millisecond 1."""


def test_who_was_revoked_decides_nothing() -> None:
    gone = [Decree("roles", "ada", *LONG_AGO)]

    assert [text for text in judge(story("answer", decrees=gone)).wrong if "rests on ada" in text]
    assert [text for text in judge(story("answer", decrees=gone)).wrong if "has taken" in text]
    assert judge(story("answer", decrees=[Decree("roles", "ada", 0, 1)])).problems() == {}


@pytest.mark.parametrize(("appended_ms", "clean"), [(20_000, True), (9_000, False), (40_000, True)])
def test_who_was_let_decide_again_before_the_decision_was_appended_may_be_counted(
    appended_ms: int, clean: bool
) -> None:
    decrees = [Decree("roles", "ada", *LONG_AGO), Decree("roles", "", 10_000, 11_000)]

    found = judge(story("answer", decrees=decrees, appended=appended_ms)).wrong

    assert ([text for text in found if "rests on ada" in text] == []) is clean


def test_an_answer_that_another_policy_has_asked_for_is_not_taken_and_a_no_is() -> None:
    strict = [Decree("current", "strict", *LONG_AGO)]

    assert [text for text in judge(story("answer", decrees=strict)).wrong if "has taken" in text]
    assert judge(story("reject", decrees=strict)).problems() == {}
    assert judge(story("answer", decrees=[Decree("current", "strict", 0, 1)])).problems() == {}


def test_the_judge_counts_what_was_decreed_and_what_came_of_it() -> None:
    refused = AttemptFailed(1, 1, Failure("decision_revoked", ""), unknown=False, retry_ms=1)
    yes, late = decided(token=decision("edit", "bob", "cleo")), ApprovalDecided(1, 4, "expire")
    run_log = log(decided(), CallDispatched(1, 1, 9), refused, ASKED, late, ASKED, yes, CallDispatched(1, 2, 9))

    counts = judge(story(run_log=run_log, decrees=[GONE, Decree("roles", "", *BACK), STRICT])).counts

    assert (counts["revocations"], counts["rechecks"], counts["approvals_asked_again"]) == (1, 1, 2)
    assert counts["held_no_longer.decision_revoked"] == counts["held_no_longer.on_arrival"] == 1
    assert counts["effects_under_a_decree"] == 1
