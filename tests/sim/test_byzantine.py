"""A slice of the sieges: a planner that lies and its accomplices, beside honest services, and proof that they lied."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulator.attacks.byzantine import NEEDED_LIES
from tests.simulator.attacks.foothold import rights
from tests.simulator.attacks.kinds import ENOUGH, KINDS, Told, tally
from tests.simulator.attacks.lies import HARMLESS, LIES
from tests.simulator.campaign import NEEDED_OF, Summary, sieges
from tests.simulator.settings import ANSWERS, CLAIMS, OTHER

SIEGES = 50
"""About 9 s of one core. `make sim` runs 20,000 of them."""


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """What happened in the cases of this file."""
    return Counter()


def test_no_lie_makes_a_dangerous_tool_run(seen: Counter[str]) -> None:
    for case in sieges(SIEGES, seed=3_110_000):
        outcome = case.run()
        assert not outcome.wrong, f"run it again: {case.command}\n{outcome.report}"
        seen.update(outcome.counts)

    assert seen["lies"] > SIEGES * 3


@pytest.mark.parametrize("what", NEEDED_LIES)
def test_a_siege_has_what_lies_need(what: str, seen: Counter[str]) -> None:
    assert seen[what] > 0, "a siege in which this never happened proves nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_lie_was_told_and_refused(kind: str, seen: Counter[str]) -> None:
    assert all(tally(seen)[kind]), "a siege in which this never happened proves nothing"


def test_every_lie_about_an_order_has_something_that_refuses_it() -> None:
    assert set(LIES) - set(HARMLESS) <= set(KINDS)


def test_a_large_campaign_fails_where_a_kind_of_lie_was_never_refused() -> None:
    refused = {f"refused: {begins[0]}": 1 for begins in KINDS.values()}
    counts = Counter({**{f"lie: {kind}": 1 for kind in KINDS}, **refused, **dict.fromkeys(NEEDED_LIES, 1)})
    needed = NEEDED_OF["byzantine"]
    whole = Summary(ENOUGH, needed=needed, counts=counts)

    assert whole.missing == []
    del counts["refused: a letter, "]
    assert whole.lies["a letter"] == Told(1, 0)
    assert whole.missing == whole.unmet == ["a refusal of a letter"]
    assert not Summary(ENOUGH - 1, needed=needed, counts=counts).unmet


def test_attackers_write_only_what_their_principals_may() -> None:
    planner, executor = rights("planner"), rights("executor", (OTHER,))

    assert planner >= {"run-log", "approval-requested", "tool-requested.default", "tool-requested.other"}
    assert not planner & {"catalog", "approval-voted", "approval-decided", CLAIMS, ANSWERS}
    assert executor == {"tool-claimed.other", "tool-completed.other", "dead-letter-executor", "run-stream.other"}
    assert rights("authority") == {"catalog"}
    assert rights("approver") == {"approval-voted"}
    assert rights("approval") == {"approval-decided", "dead-letter-approval"}
