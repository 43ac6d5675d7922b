"""Count of votes: a pure function of their set, independent of order and repetition."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from refold.core.approval import decision, signature
from refold.core.approval.catalog import Roles, is_person, no_person
from refold.core.approval.decision import RUN, Cast, Entitlement, Grant, Verdict
from refold.core.approval.requester import has_asked, quorum_of
from refold.core.approval.signature import PublicKey
from refold.core.errors import MalformedError, UnauthorisedError
from refold.core.events import DOUBT, Requirement
from refold.core.messages import ApprovalRequest
from refold.core.wire import canonical

DECIDING: dict[str, Verdict] = {verdict: verdict for verdict in decision.VERDICTS if verdict != "amend"}
STANCES = (*DECIDING, "delegate", "withdraw")
"""Actions that state an opinion; a person's latest one counts."""

ACTIONS = (*STANCES, "reassign", "comment", "remind", "revoke-grant")
HANDING = ("delegate", "reassign")
VOTE_MS = 7 * 86_400_000
"""Lifetime of a vote on a question that never expires: an approval of last month may be outdated."""

LATEST_MS = 2**52
"""Latest time in a vote. Times derived from it still have a JSON form, so no vote stops the count."""


class Remember(NamedTuple):
    """Request to repeat an approval for the same call of this run, at most `uses` times."""

    for_ms: int
    uses: int


class Objection(NamedTuple):
    """Reason why a vote is void. `code`: `malformed`, `unauthorised`, `wrong_question`, `late`, `requester`,
    `unentitled`, `handed_on`, `not_remembered`, `edit_not_possible`, `future`, `outlived`; from the approval service
    also `unknown`, `edit_denied`, `too_large`, `too_many`, `no_grant`."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Vote:
    """Vote of a person. **Units**: `issued` in milliseconds."""

    approval: str
    vote: str
    question: str  # the digest that it answers
    environment: str
    actor: str
    action: str
    issued: int
    roles: tuple[str, ...] = ()  # from the actor's login
    strength: str = ""
    args: str = ""  # of an `edit`, canonical JSON
    result: str = ""  # of an `answer`, canonical JSON
    message: str = ""
    to: tuple[str, ...] = ()  # new decider of a `delegate` (one) or `reassign` (approvers as in a policy)
    remember: Remember | None = None

    def payload(self) -> dict[str, Any]:
        fields = {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}
        remember = {"scope": RUN, **self.remember._asdict()} if self.remember else None
        return {"kind": "vote", **fields, "roles": list(self.roles), "to": list(self.to), "remember": remember}

    @staticmethod
    def parse(payload: Mapping[str, Any], key: PublicKey) -> Vote:
        """Vote in a payload signed by this key, with the roles that the key may claim. **Raises** MalformedError for
        another shape, UnauthorisedError if the key may not vote for the actor."""
        fields = decision.signed_fields(Vote, "vote", payload)
        if not signature.are_names(fields["roles"]) or not signature.are_names(fields["to"]):
            raise MalformedError("roles and to are lists of names")
        lists = {"roles": tuple(fields["roles"]), "to": tuple(fields["to"])}
        vote = Vote(**{**fields, **lists, "remember": _remember(fields["remember"])})
        check_vote(vote)
        if key.actors and vote.actor not in key.actors:
            raise UnauthorisedError(f"the key {key.kid} does not speak for {vote.actor}", reason="actor")
        claimed = tuple(role for role in vote.roles if role in key.roles)
        return dataclasses.replace(vote, roles=claimed, strength=key.strength or vote.strength)


class BallotResult(NamedTuple):
    """Verdict on which the votes on a question agree."""

    verdict: Verdict
    votes: tuple[Cast, ...]  # the deciding ones
    edited: str = ""
    result: str = ""
    message: str = ""
    grant: Grant | None = None
    said: tuple[Vote, ...] = ()  # `votes` as they were cast, with the delegations behind them
    given: str = ""  # the decision that gave the used grant


@dataclass(frozen=True, slots=True)
class Count:
    """Votes on a question so far, and their result if enough agree."""

    settled: BallotResult | None
    cast: tuple[tuple[Vote, Cast], ...]  # votes that count, oldest first
    leading: int  # size of the largest agreement
    approvers: tuple[str, ...]  # after reassignments, which replace the list, and an escalation, which adds to it
    void: Mapping[Vote, Objection]


def open_vote(token: str, keys: Mapping[str, PublicKey]) -> Vote:
    """Vote in a token. **Raises** UnauthorisedError, MalformedError."""
    payload = signature.verified(token, keys, use="vote")
    return Vote.parse(payload, keys[signature.kid_of(token)])


def count(request: ApprovalRequest, votes: Iterable[Vote], roles: Roles, now: int) -> Count:
    """Count the votes on a request at the log time `now` in milliseconds. The latest vote of each entitled person
    counts. One rejection decides, else the first `quorum` of equal votes."""
    void: dict[Vote, Objection] = {}
    good: list[Vote] = []
    # By content, not as read: a successor has to reach the same verdict from the same set of votes.
    for vote in sorted(set(votes), key=order):
        if problem := objection(request, vote, now):
            void[vote] = problem
        else:
            good.append(vote)
    deciders = _Deciders(request, good, roles)
    void |= {vote: problem for vote in good if (problem := deciders.objection(vote))}
    deciding = [vote for vote in deciders.last.values() if vote.action in DECIDING and vote.actor in deciders.lineages]
    cast = tuple(
        (vote, Cast(vote.actor, decision.via(deciders.lineages[vote.actor]), vote.strength, vote.vote, vote.issued))
        for vote in sorted(deciding, key=order)
    )
    groups = _groups_of_equal_votes(cast)
    leading = max(map(len, groups), default=0)
    settled = _settled(request, cast, groups, deciders.quorum)
    if settled:
        settled = settled._replace(said=deciders.behind(settled.votes))
    return Count(settled, cast, leading, deciders.approvers, void)


def may_decide(request: ApprovalRequest, votes: Iterable[Vote], roles: Roles, actor: str, now: int) -> bool:
    """True if a vote of `actor` would count, by their own right or as a deputy. Roles from a login are unknown here."""
    if request.requirement.not_requester and has_asked(request, actor):
        return False
    good = [vote for vote in sorted(set(votes), key=order) if objection(request, vote, now) is None]
    deciders = _Deciders(request, [vote for vote in good if vote.actor != actor or vote.action not in STANCES], roles)
    return bool(roles.entitled(deciders.approvers, actor)) or actor in deciders.lineages


def dated_ahead(vote: Vote, now: int) -> Objection | None:
    """Objection to a vote from the future, else None."""
    # A vote from the future would outrank all other votes of its person until its time.
    if vote.issued <= now + decision.SKEW_MS:
        return None
    return Objection("future", f"the vote is dated {(vote.issued - now) // 1000} s ahead")


def objection(request: ApprovalRequest, vote: Vote, now: int) -> Objection | None:
    """Objection to a vote that holds regardless of other votes; None if there is none."""
    if (vote.approval, vote.question, vote.environment) != (request.approval_id, request.question, request.environment):
        return Objection("wrong_question", "the vote answers another question")
    if untimely := _untimely(request, vote, now):
        return untimely
    if vote.action in ("comment", "remind"):
        return None
    if request.requirement.not_requester and has_asked(request, vote.actor):
        return Objection("requester", f"{vote.actor} has asked for the run or its arguments and may not decide on it")
    if not _may_change(request, vote.action):
        return Objection("edit_not_possible", "the call was sent before, it can only be approved as it is or rejected")
    return _too_long(request.requirement, vote.remember) if vote.remember else None


def _untimely(request: ApprovalRequest, vote: Vote, now: int) -> Objection | None:
    # A late vote may be withdrawn: the question may be prolonged, and the vote is not late then.
    if vote.action != "withdraw" and request.expires_ms and vote.issued >= request.expires_ms:
        return Objection("late", "the vote was issued after the approval had expired")
    # By the expiry of the policy, not that of the request, which a planner may forge.
    outlived = now >= vote.issued + (request.requirement.expires_ms or VOTE_MS)
    too_old = Objection("outlived", "the vote is too old by now: say it again")
    return dated_ahead(vote, now) or (too_old if outlived else None)


def _may_change(request: ApprovalRequest, action: str) -> bool:
    # Arguments and result are fixed once the call may have been sent.
    if request.about == DOUBT:
        return action != "edit"
    return request.attempt == 1 or action not in ("edit", "answer")


def _too_long(needed: Requirement, remember: Remember) -> Objection | None:
    if not needed.remember_uses:
        return Objection("not_remembered", "its rule does not let an approval be remembered")
    if remember.for_ms <= needed.remember_ms and remember.uses <= needed.remember_uses:
        return None
    most = f"for {needed.remember_ms // 1_000} s and {needed.remember_uses} uses at most"
    return Objection("not_remembered", f"its rule lets an approval be remembered {most}")


class _Deciders:
    """People entitled to decide by these votes. A delegation cannot be delegated again; such a vote is ignored."""

    def __init__(self, request: ApprovalRequest, votes: list[Vote], roles: Roles) -> None:
        needed = request.requirement
        more = tuple(needed.escalate_to) if request.level else ()
        self._roles, self.quorum = roles, quorum_of(request, roles.askers)
        self._named = (*needed.approvers, *more)
        self._listed, self._by = tuple(needed.approvers), tuple[Entitlement, ...]()
        self._delegated: dict[str, Vote] = {}
        self._reassigned: Vote | None = None
        if self.quorum <= 1:
            self._reassign(votes)
        self.approvers = tuple(dict.fromkeys([*self._listed, *more]))
        self.last = {vote.actor: vote for vote in votes if self._is_stance(vote)}
        seated = [vote for vote in self.last.values() if roles.entitled(self.approvers, vote.actor, vote.roles)]
        self.lineages = {vote.actor: self._lineage(vote) for vote in seated}
        self._deputise(vote for vote in sorted(seated, key=lambda vote: vote.actor) if vote.action == "delegate")

    def _reassign(self, votes: Iterable[Vote]) -> None:
        for vote in votes:
            # People named by the policy may always reassign again: else one mistake would leave no approver.
            if vote.action == "reassign" and (own := self._own(vote)):
                self._listed, self._by, self._reassigned = vote.to, (Entitlement(vote.actor, own),), vote

    def _is_stance(self, vote: Vote) -> bool:
        return vote.action in STANCES and (vote.action != "delegate" or bool(self._own(vote)))

    def _deputise(self, delegations: Iterable[Vote]) -> None:
        for vote in delegations:
            deputy = vote.to[0]
            if deputy not in self.lineages and self._roles.entitled([deputy], deputy):
                self.lineages[deputy] = (Entitlement(deputy, deputy), *self.lineages[vote.actor])
                self._delegated[deputy] = vote

    def behind(self, cast: Iterable[Cast]) -> tuple[Vote, ...]:
        """Cast votes and their delegations: by themselves they give the same verdict."""
        votes = [vote for by in cast for vote in (self.last[by.actor], self._delegated.get(by.actor))]
        return tuple(sorted({vote for vote in (*votes, self._reassigned) if vote}, key=order))

    def _own(self, vote: Vote) -> str:
        """Approver of the policy that a voter matches; empty if none."""
        return self._roles.entitled(self._named, vote.actor, vote.roles)

    def _lineage(self, vote: Vote) -> tuple[Entitlement, ...]:
        """Right of a voter, and of the person that reassigned the question."""
        if own := self._own(vote):
            return (Entitlement(vote.actor, own),)
        approver = self._roles.entitled(self._listed, vote.actor, vote.roles)
        return (Entitlement(vote.actor, approver), *self._by) if approver else ()

    def objection(self, vote: Vote) -> Objection | None:
        approvers, own = self.approvers, self._own(vote)
        if vote.action == "reassign" and self.quorum > 1:  # or one alone would choose all others
            reason = f"{self.quorum} people have to agree, and each may delegate their own word"
            return Objection("unentitled", reason)
        if vote.action in HANDING and not own:
            lineage = self.lineages.get(vote.actor) or self._lineage(vote)
            if len(lineage) > 1:
                text = f"{vote.actor} decides on the word of {lineage[-1].actor}"
                return Objection("handed_on", f"{text}, and what was handed on is not handed on again")
            approvers = tuple(dict.fromkeys((*approvers, *self._named)))
        elif vote.action not in (*DECIDING, "delegate") or vote.actor in self.lineages:
            return None
        return Objection("unentitled", f"{vote.actor} is none of {', '.join(approvers)}")


def _groups_of_equal_votes(cast: Iterable[tuple[Vote, Cast]]) -> list[list[Vote]]:
    groups: dict[tuple[str, str, str], list[Vote]] = defaultdict(list)
    for vote, _ in cast:
        if vote.action != "reject":
            groups[vote.action, vote.args, vote.result].append(vote)
    return list(groups.values())


def _settled(
    request: ApprovalRequest, cast: tuple[tuple[Vote, Cast], ...], groups: list[list[Vote]], quorum: int
) -> BallotResult | None:
    for vote, by in cast:
        if vote.action == "reject":
            return BallotResult("reject", (by,), message=vote.message)
    ready = (group for group in groups if len(group) >= quorum)
    group = min(ready, key=lambda votes: order(votes[quorum - 1]), default=None)
    if group is None:
        return None
    by_vote, group = dict(cast), group[:quorum]
    first = group[0]
    return BallotResult(
        DECIDING[first.action],
        tuple(by_vote[vote] for vote in group),
        edited=first.args,
        result=first.result,
        message=next((vote.message for vote in group if vote.message), ""),
        grant=_grant(request, group, quorum),
    )


def _grant(request: ApprovalRequest, group: list[Vote], quorum: int) -> Grant | None:
    """Permission to repeat the call, at the strictest limits of the votes; None unless all of them give one."""
    remembered = [(vote.issued + vote.remember.for_ms, vote.remember) for vote in group if vote.remember]
    if len(remembered) < quorum:
        return None
    return Grant(
        id=request.approval_id,
        scope=RUN,
        until_ms=min(until for until, _ in remembered),
        uses=min(remember.uses for _, remember in remembered),
        use=0,
        rule=request.rule,
    )


def order(vote: Vote) -> tuple[int, str, str]:
    """Sort key of votes by time, then id and content: every reader counts them in the same order."""
    return vote.issued, vote.vote, repr(vote)


def _remember(content: Any) -> Remember | None:
    if content is None:
        return None
    if not isinstance(content, dict) or content.keys() != {"scope", *Remember._fields}:
        raise MalformedError("remember is an object with scope, for_ms and uses")
    if content["scope"] != RUN:
        raise MalformedError("a grant is for one run: what is wider is for a policy to allow")
    if any(type(content[name]) is not int for name in Remember._fields):
        raise MalformedError("what is remembered has a time and a number of uses")
    return Remember(content["for_ms"], content["uses"])


def most_said(payload_bytes: int, quorum: int) -> int:
    """Most bytes of JSON that one vote may add to a decision of `quorum` people."""
    # A decision has the content once itself and once in each vote; base64 adds a third, to the votes twice. A quarter
    # of the largest payload is for the decision's subject and people.
    return min(payload_bytes, signature.TOKEN_BYTES) * 27 // (16 * (3 + 4 * max(1, quorum)))


def oversized(vote: Vote, limit: int) -> Objection | None:
    """Objection to a vote with more than `limit` bytes of JSON."""
    # The message counts twice: a rejection copies it into the decision and into the failures of call and run.
    size = len(canonical.dumps([vote.args, vote.result, vote.message, vote.message]).encode())
    if size <= limit:
        return None
    parts = "arguments, result and twice the message of the vote"
    return Objection("too_large", f"{parts} have {size} bytes as JSON, and a decision takes at most {limit}")


def check_vote(vote: Vote) -> None:
    """Check that a vote has the fields of its action, and no others. **Raises** MalformedError."""
    _check_names(vote)
    if bool(vote.args) != (vote.action == "edit") or bool(vote.result) != (vote.action == "answer"):
        raise MalformedError("an edit has arguments, an answer has a result, and nothing else has")
    if (vote.action == "delegate" and len(vote.to) != 1) or bool(vote.to) != (vote.action in HANDING):
        raise MalformedError("a delegate vote names one person, a reassign vote approvers, and nothing else names any")
    if "*" in vote.to:
        raise MalformedError("nobody may hand a decision to anybody at all")
    _check_times(vote)
    for text in filter(None, (vote.args, vote.result)):
        if canonical.dumps(canonical.parse(text)) != text:
            raise MalformedError("the JSON of the vote is not canonical")


def _check_names(vote: Vote) -> None:
    if vote.action not in ACTIONS or not vote.actor or not vote.vote or "/" in vote.vote:
        raise MalformedError("the vote has no actor, no id or no known action")
    if not all((*vote.roles, *vote.to)):
        raise MalformedError("roles and to are lists of names")
    for name in (vote.actor, *(vote.to if vote.action == "delegate" else ())):
        if not is_person(name):  # it would be read as a role, or as `*`
            raise MalformedError(no_person(name))


def _check_times(vote: Vote) -> None:
    if vote.remember and min(vote.remember) < 1:
        raise MalformedError("what is remembered has a time and a number of uses")
    if vote.remember and vote.action != "approve":
        raise MalformedError("only an approval can be remembered")
    if vote.issued < 0 or vote.issued + (vote.remember.for_ms if vote.remember else 0) > LATEST_MS:
        raise MalformedError("the vote is from before 1970, or for longer than time lasts")
