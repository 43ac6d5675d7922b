"""Scenarios in which people decide: every verdict, every way to expire, and what may change meanwhile."""

from __future__ import annotations

from typing import Any

from tests.simulator.workload.inputs import ClientInput, Scenario, signal, start_run
from tests.simulator.world.law import LEADS, OUTSIDER, REQUESTER, Decree
from tests.simulator.world.people import Say

YES, NO = Say("ada"), Say("ada", "reject")


def _asked(
    name: str,
    tool: str,
    *people: Say,
    policy: str = "ask",
    agent: str = "handling",
    requester: str = REQUESTER,
    scripts: tuple[str, ...] = (),
    decrees: tuple[Decree, ...] = (),
    more: tuple[ClientInput, ...] = (),
    silent: bool = False,
    **changes: Any,
) -> Scenario:
    first = start_run("r-1", agent, {"tool": tool}, requester=requester, labels={"session": "s-1"})
    sizes = {"approvals": 1, **changes}
    return Scenario(name, (first, *more), {tool: scripts}, "truth", sizes, people, policy, decrees, silent=silent)


def _cancel(at_ms: int) -> tuple[ClientInput, ...]:
    return (signal("r-1", "c", "cancel", {"reason": "enough"}, at_ms=at_ms),)


QUESTIONS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        _asked("approve-keyed", "wipe_push", YES),
        _asked("approve-probed", "wipe_book", YES),
        _asked("approve-once", "wipe_pay", YES),
        _asked("approve-eager", "wipe_push", YES, commit_ms=1),
        _asked("reject-once", "wipe_pay", NO),
        _asked("edit-keyed", "wipe_push", Say("ada", "edit")),
        _asked("edit-once", "wipe_pay", Say("ada", "edit")),
        _asked("edit-beyond", "wipe_pay", Say("ada", "edit"), policy="ask-two-of-edits"),
        _asked("answer-once", "wipe_pay", Say("ada", "answer")),
        _asked("policy-only", "pay", YES, policy="ask-all"),
        _asked("expires", "wipe_pay", policy="rejecting", silent=True),
        _asked("expires-late", "wipe_pay", Say("ada", after_ms=590), policy="rejecting", silent=True),
        _asked("expires-fails", "wipe_pay", policy="failing", silent=True),
        _asked("escalates", "wipe_pay", Say("dan", level=1), policy="escalating", silent=True),
        _asked("escalates-early", "wipe_push", Say("dan", level=1), policy="escalating-early", silent=True),
        _asked("quorum", "wipe_pay", YES, Say("bob", after_ms=300, again_ms=50), policy="ask-two"),
        _asked("quorum-changes", "wipe_pay", YES, Say("bob", "edit", 250), Say("ada", "edit", 400), policy="ask-two"),
        _asked("withdrawn", "wipe_pay", YES, Say("ada", "withdraw", 200), Say("cyd", after_ms=500), policy="ask-two"),
        _asked("delegated", "wipe_pay", Say("ada", "delegate", to=("mallory",)), Say(OUTSIDER, after_ms=250)),
        _asked(
            "handed-on-twice",
            "wipe_pay",
            Say("ada", "reassign", to=(OUTSIDER,)),
            Say(OUTSIDER, "delegate", 250, to=("zed",)),
            Say("zed", after_ms=350),
            Say(OUTSIDER, after_ms=500),
        ),
        _asked("requester-votes", "wipe_pay", YES, Say("bob", after_ms=400), requester="ada"),
        _asked("outsiders", "wipe_pay", Say(OUTSIDER), Say("ada", key="stranger"), Say("bob", question="made-up")),
        _asked("reminded", "wipe_push", Say("bob", "remind"), Say("bob", "comment", 200), Say("ada", after_ms=300)),
        _asked("cancel-waiting", "wipe_pay", Say("ada", after_ms=320), more=_cancel(300), silent=True),
        _asked("cancel-decided", "wipe_push", YES, scripts=("slow",), more=_cancel(320)),
        _asked("denied", "push", policy="deny"),
        _asked("allowed", "push", policy="allow"),
        _asked("twins-asked", "wipe_pay", YES, Say("bob", "reject", 300, nth=2), agent="both"),
        _asked("brief-retried", "wipe_push", YES, policy="brief", scripts=("raises-after", "hangs-before")),
        _asked("brief-once", "wipe_pay", YES, policy="brief", scripts=("not-done", "ok")),
        _asked(
            "doubt-rejected",
            "wipe_push",
            Say("ada", nth=1),
            Say("ada", "reject", nth=2),
            Say("ada", nth=3),
            policy="brief",
            scripts=("hangs-before",),
        ),
        _asked("retried-once", "wipe_pay", YES, scripts=("raises-before",)),
        _asked("retried-probed", "wipe_book", YES, scripts=("raises-before", "raises-after")),
        _asked(
            "recheck-waiting", "wipe_pay", Say("bob", after_ms=400), decrees=(Decree(200, "policy", "recheck-two"),)
        ),
        _asked("recheck-sent", "wipe_push", YES, decrees=(Decree(155, "policy", "recheck-ask"),)),
        # The policy of before is in force again when people say no: what was sent first would pass an executor's gate.
        _asked(
            "taken-back",
            "wipe_push",
            Say("ada", nth=1),
            Say("ada", "reject", 3_000, nth=2),
            decrees=(Decree(156, "policy", "recheck-two"), Decree(400, "policy", "ask")),
            silent=True,
            agent="handling",
        ),
        _asked("recheck-denied", "wipe_push", YES, decrees=(Decree(155, "policy", "recheck-deny"),)),
        _asked("recheck-allowed", "push", policy="allow", decrees=(Decree(1, "policy", "recheck-ask"),)),
        _asked("key-revoked", "wipe_push", YES, decrees=(Decree(155, "revoke"),)),
        _asked("key-rotated", "wipe_pay", YES, decrees=(Decree(155, "rotate"),)),
        _asked(
            "ada-revoked",
            "wipe_pay",
            YES,
            Say("bob", after_ms=500),
            decrees=(Decree(155, "roles", {"roles": {"lead": list(LEADS[1:]), "head": ["dan"]}, "revoked": ["ada"]}),),
        ),
        _asked("granted", "wipe_push", Say("ada", remember=(60_000, 2)), policy="ask-anybody", agent="thrice"),
        _asked("slow-clock", "wipe_push", YES, policy="brief", scripts=("hangs-after",), executor_skew_ms=-3_000),
        _asked("approve-shared", "wipe_pay", YES, planners=2, executors=2, approvals=2, sharing=True),
    )
}
"""By name. Fixed times of votes and decrees fall between the steps of a run without faults."""
