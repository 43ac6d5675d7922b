"""A question to people as pages show it: from the run's history, completed by Kafka's topics."""

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

from refold.client.reading.approval import Approval, ApprovalIndex, against, others, vote_row
from refold.client.reading.history import Run, at_seqs
from refold.client.reading.model import json_text, split_args
from refold.client.reading.steps import Ask, RunStep
from refold.console.gateway.logins import value_at
from refold.console.gateway.site import Gateway
from refold.console.pages.wording import TextDiff, change_in
from refold.console.projections.shipped.tables import VOTES
from refold.core.approval import ballot
from refold.core.approval.decision import shown_as_edit
from refold.core.approval.question import named
from refold.core.approval.requester import is_verified
from refold.core.errors import MalformedError, NotFoundError, UnreachableError, UsageError
from refold.core.events import ApprovalEscalated, ApprovalRequested
from refold.core.ids import approval_id, parse_approval_id, root_of
from refold.core.messages import ApprovalRequest
from refold.core.planning.asking import question_of
from refold.core.wire.canonical import hex_digest
from refold.engine.ports.tables import Query, ViewReader, Where
from refold.lab.back_test import OF_THE_APP, BackTest

MOST_VOTES = 100
"""Votes that a page shows of a question."""
MOST_STAND_INS = 8
"""Persons that a question offers to act as."""
REMIND_MS = 10 * 60_000
"""Least time between two reminders about a question from pages."""
ASKED_S = 2.0
"""Seconds that a vote waits for a question to reach its topic."""
MOST_INLINE = 10_000
"""Characters of a question shown among others; longer ones have their own page."""
_PATH = re.compile(r"\bargs((?:\.\w+)+)")


class RuleSeen(NamedTuple):
    """The rule that asks, with the values it read. `unknown`: names whose values only the app has."""

    when: str
    values: dict[str, Any]
    unknown: list[str]


@dataclass(frozen=True)
class PageQuestion:
    """A question with its step and outcome. `waits`: the open question about its call; `then`: the run when people were
    asked; `known`: the question in the topics, once `informed`; `alone`: the page shows only this question; `child`:
    the page shows an ancestor."""

    request: ApprovalRequest
    step: RunStep
    ask: Ask
    waits: str
    run: Run
    then: Run
    votes: list[dict[str, Any]] = field(default_factory=list)
    known: Approval | None = None
    rule: RuleSeen | None = None
    warning: str = ""
    seq: int = 0
    """Last event of the run."""
    alone: bool = False
    child: bool = False
    offers: frozenset[str] = frozenset()
    """Actions whose vote by the reader would be accepted now."""
    stand_ins: list[str] = field(default_factory=list)
    """Persons entitled to decide that pages of `refold dev` may act as."""

    @property
    def place(self) -> str:
        """Name of the question on a page."""
        return f"{self.step.step}-{self.request.run_id}" if self.child else f"{self.step.step}"

    @property
    def whole(self) -> bool:
        return self.alone or len(self.request.args) + len(self.request.proposed_args) <= MOST_INLINE

    @property
    def most(self) -> int:
        """Characters shown of arguments."""
        return sys.maxsize if self.whole else MOST_INLINE // 4

    @property
    def decidable(self) -> bool:
        """True if a vote would be accepted, and all that it binds is on the page."""
        return self.open and self.whole and not self.warning and not self.offers.isdisjoint(ballot.DECIDING)

    @property
    def open(self) -> bool:
        """True while the run waits for it."""
        return self.waits == self.request.approval_id

    @property
    def change(self) -> TextDiff | None:
        """Change that the arguments describe, if any."""
        return change_in(json_text(self.request.args))

    @property
    def change_is_all(self) -> bool:
        """True if the tool declares that the difference is complete."""
        return shown_as_edit(self.request)

    @property
    def context(self) -> dict[str, Any]:
        """Context that a framework adds to the arguments, by names that begin with `$`."""
        return split_args(json_text(self.request.args))[1]

    @property
    def own(self) -> Any:
        """Arguments without `context`."""
        return split_args(json_text(self.request.args))[0]

    @property
    def digest(self) -> str:
        return hex_digest(self.request.args)

    @property
    def verified(self) -> bool:
        """True if a catalog key proves the run's requester."""
        return self.known is not None and is_verified(self.request, self.known.roles.askers)


def question_in(view: ViewReader, run: Run, approval: str, *, alone: bool = False) -> PageQuestion:
    """Return a question of a run, as it was asked. **Raises** NotFoundError, MalformedError for an invalid id."""
    _, seq, _ = parse_approval_id(approval)
    for at, event in _asked(run):
        then = at_seqs(run, [at])[0]
        if approval_id(then.timeline.steps[event.step - 1].call_id, event.question) == approval:
            return replace(_question_on(view, run, then, event.step), alone=alone)
    raise NotFoundError(f"run {run.state.run_id} has asked no such question about its event {seq}")


def open_questions(view: ViewReader, run: Run, *, child: bool = False) -> list[PageQuestion]:
    return [replace(_question_on(view, run, run, step.step), child=child) for step in run.timeline.asking]


def _asked(run: Run) -> Iterator[tuple[int, ApprovalRequested | ApprovalEscalated]]:
    """Yield the events that ask people, the latest first."""
    for judged in reversed(run.records):
        entry = judged.entry
        for seq, event in reversed([*enumerate(entry.events, entry.seq)] if entry else []):
            if isinstance(event, ApprovalRequested | ApprovalEscalated):
                yield seq, event


def _question_on(view: ViewReader, run: Run, then: Run, step: int) -> PageQuestion:
    call, now = then.state.call(step), run.timeline.steps[step - 1]
    request = question_of(then.state, call, then.state.open[step])
    seen_step = then.timeline.steps[step - 1]
    ended = next((ask for ask in now.approvals if ask.approval_id == request.approval_id), seen_step.approvals[-1])
    waits = now.asked.approval_id if now.asked else ""
    votes, warning = _votes_in_view(view, request), _other_content(request)
    return PageQuestion(request, now, ended, waits, run, then, votes=votes, warning=warning, seq=run.state.head.seq)


def informed(shared: Gateway, questions: list[PageQuestion]) -> list[PageQuestion]:
    """Complete questions from Kafka's topics, with the actions on offer."""
    if not questions:
        return questions
    first = next((question for question in questions if question.open), questions[0])
    family = len({root_of(question.request.run_id) for question in questions}) == 1
    index = topics_of(shared, first.request.approval_id if family else "", wait=first.open)
    if index is not None:
        return [_with_approval(shared, index, question) for question in questions]
    # Without Kafka the entitled people are unknown, and a vote would be refused.
    return questions


def topics_of(shared: Gateway, near: str = "", *, wait: bool = False) -> ApprovalIndex | None:
    """Return the questions in the topics, or only of the home of `near`; with `wait`, once it is there."""
    # None without Kafka: pages are shown without the topics, at once even if Kafka hangs.
    if shared.writing.deaf:
        return None
    with suppress(UnreachableError, UsageError), shared.log():
        approvals = shared.platform.approvals
        partition = approvals.home_of(near) if near else None
        index = approvals.read(partition)
        if not (wait and near) or index.find(near):
            return index
        approvals.asked(near, ASKED_S)
        return approvals.read(partition)
    return None


def _with_approval(shared: Gateway, index: ApprovalIndex, question: PageQuestion) -> PageQuestion:
    """Add the votes, rule, warning and possible actions from the index of approvals, if it contains the question."""
    if (approval := index.find(question.request.approval_id)) is None:
        return question
    return replace(
        question,
        known=approval,
        votes=[vote_row(approval, vote) for vote in approval.said[-MOST_VOTES:]],
        rule=_rule_seen(question.then, question.step.step, question.request, approval),
        warning=question.warning or _contradictions(question.run, approval),
        **offers_of(shared, index, approval),
    )


def offers_of(shared: Gateway, index: ApprovalIndex, approval: Approval | None) -> dict[str, Any]:
    """Return the fields `offers` and `stand_ins` of a `PageQuestion`."""
    if approval is None or approval.state != "open":
        return {"offers": frozenset(), "stand_ins": []}
    offers, roles = frozenset[str](), shared.login.roles if shared.login else ()
    if shared.may_write("vote") and (key := shared.signer()):
        offers = shared.platform.approvals.offered(index, approval, shared.actor, roles, key)
    others = (name for name in shared.logins.people if name != shared.actor and approval.may_decide(name))
    offers -= {"remind"} if _was_reminded(approval) else set()
    return {"offers": offers, "stand_ins": [*islice(others, MOST_STAND_INS)]}


def _was_reminded(approval: Approval) -> bool:
    return any(approval.now - vote.issued < REMIND_MS for vote in approval.said if vote.action == "remind")


def _other_content(request: ApprovalRequest) -> str:
    """Return an error if a question's content differs from its digest, or empty."""
    with suppress(MalformedError):
        if named(request) == request:
            return ""
    return "the views have other content than the question has"


def _contradictions(run: Run, approval: Approval) -> str:
    others = (f"people are asked {other} about it as well" for other in approval.others)
    return against(run.state, approval) or ", ".join(others)


def _votes_in_view(view: ViewReader, request: ApprovalRequest) -> list[dict[str, Any]]:
    where = (Where("run_id", "=", request.run_id), Where("approval_id", "=", request.approval_id))
    rows = map(VOTES.named, view.query(Query(VOTES, where, limit=MOST_VOTES)))
    blank = {"to": (), "args": "", "result": "", "void": ""}
    votes = [{**row, **blank, "issued": row["issued_ms"], "fate": "counts" if row["counts"] else ""} for row in rows]
    return sorted(votes, key=lambda row: int(row["issued"]))


def _rule_seen(then: Run, step: int, request: ApprovalRequest, approval: Approval) -> RuleSeen | None:
    if approval.policy is None:
        return None
    rule = next((rule for rule in approval.policy.rules if rule.name == request.rule), None)
    if rule is None:
        return None
    variables = BackTest(approval.policy, request.environment).variables(then.state, then.state.call(step))
    values = {name: variables[name] for name in sorted(rule.when.needs & variables.keys()) if name != "args"}
    paths = dict.fromkeys(_PATH.findall(rule.when.source))
    read = {f"args{path}": value_at(variables.get("args"), path[1:].split(".")) for path in paths}
    values |= {name: value for name, value in read.items() if value is not None}
    return RuleSeen(rule.when.source, values, sorted(rule.when.needs & OF_THE_APP))


def checked_vote(shared: Gateway, approval: str, question: str, action: str, content: dict[str, Any]) -> Approval:
    """Check that a vote would count now, and return its question. **Raises** ConflictError for another or a closed
    question; UsageError for a void vote; NotFoundError, UnreachableError."""
    shared.writing.check()
    with shared.log():
        approvals = shared.platform.approvals
        approvals.asked(approval, ASKED_S)
        shown = approvals.get(approval)
        roles, content = shared.login.roles if shared.login else (), {"result": ""} | content
        approvals.vote(approval, action, question=question, actor=shared.actor, roles=roles, **content)
    if action == "remind" and _was_reminded(shown):
        hint = f"once in {REMIND_MS // 60_000} minutes is enough"
        raise UsageError("people were reminded of this question a moment ago", hint=hint)
    return shown


def verdict_on(question: Approval, args: str) -> str:
    """Return the policy's verdict on edited arguments, in words."""
    judgement = question.judged(args)
    if judgement is None:
        return "The policy of this question is not in the catalog: nobody can tell what it says of these arguments."
    if people := others(question, args):
        effect = "by your edit it becomes their question, and nothing goes out before they have decided"
        return f"The policy asks {people} about these arguments: {effect}."
    if judgement.allows and not judgement.requirements:
        return "The policy lets these arguments go out without people."
    if judgement.allows:
        return "The policy may let these arguments go out without people: that depends on what only the app knows."
    if question.request.requirement.not_requester:
        return "The policy asks others than you about these arguments: nothing goes out before they have decided."
    return "The policy asks the same people about these arguments: your word counts."
