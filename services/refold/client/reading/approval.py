"""Approvals, counted by the rule of the approval service and shown from log records alone."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from refold.client.reading.history import ReadRecord
from refold.client.reading.model import ReadModel, json_text, plain, utc_of
from refold.client.reading.steps import resolve_commands
from refold.core.approval import ballot, decision, policy_check, signature
from refold.core.approval.ballot import Count, Objection, Vote
from refold.core.approval.catalog import ROLE, Catalog, Roles
from refold.core.approval.decision import Decision
from refold.core.approval.policy import Policy
from refold.core.approval.policy_check import PartialJudgement
from refold.core.approval.question import named, received
from refold.core.approval.requester import is_verified, quorum_of
from refold.core.approval.signature import Trust
from refold.core.errors import FoldError, MalformedError, UnauthorisedError
from refold.core.events import DOUBT, Cause
from refold.core.ids import asked_about, home, parse_approval_id
from refold.core.messages import ApprovalDecision, ApprovalRequest, ApprovalVote, DeadLetter
from refold.core.planning.asking import CAME, question_of
from refold.core.run.state import RunState
from refold.core.topics import APPROVAL_DECIDED, APPROVAL_REQUESTED, APPROVAL_VOTED, CATALOG, DEAD_LETTER_APPROVAL
from refold.core.wire import canonical, codec

READ_TOPICS = (CATALOG, APPROVAL_REQUESTED, APPROVAL_VOTED, APPROVAL_DECIDED, DEAD_LETTER_APPROVAL)
SERVICE_ONLY = ("edit_not_possible", "edit_denied", "too_large", "too_many", "future")
"""Objections that only the service can raise: it has the tools, its own limits and the time of a vote."""

NO_KEY = "no key that signs decisions is in force"
_WITHDRAWABLE = frozenset(ballot.STANCES) - {"withdraw"}
Fate = Literal["counts", "void", "superseded", "withdrawn", "recorded"]
ApprovalState = Literal["open", "decided", "closed"]
GrantState = Literal["standing", "revoked", "expired"]


@dataclass(frozen=True, slots=True)
class Approval:
    """A request with its votes and its decision. `state` is open, decided, or closed: undecided at an expiry or the end
    of the run. `over`: the run waits no longer. `refused`: unreadable votes (id, reason); `held`: reason why no service
    decides. `others`, open questions about the same call, are a fault. **Units**: `now` in ms, as of the index."""

    request: ApprovalRequest
    state: ApprovalState
    count: Count
    said: tuple[Vote, ...]
    refused: tuple[tuple[str, str], ...]
    decision: Decision | None
    roles: Roles
    policy: Policy | None
    held: str
    over: bool
    others: tuple[str, ...]
    now: int

    def may_decide(self, name: str) -> bool:
        """True if a vote of `name` would count now, also by delegation, apart from roles claimed by logins."""
        return ballot.may_decide(self.request, self.live(), self.roles, name, self.now)

    def void(self, vote: Vote) -> Objection | None:
        """Objection to a further vote; None if it would count now."""
        return ballot.count(self.request, [*self.live(), vote], self.roles, self.now).void.get(vote)

    def judged(self, args: str) -> PartialJudgement | None:
        """Judgement of the request's policy on other arguments, without the tool's tags; None without a policy."""
        return policy_check.of_request(self.policy, self.request, None, args=args) if self.policy else None

    def people(self) -> tuple[str, ...]:
        named, _ = reach(self.count.approvers, self.roles)
        deputies = (vote.to[0] for vote in self.said if vote.action == "delegate")
        return tuple(filter(self.may_decide, dict.fromkeys([*named, *deputies])))

    def lacks_people(self) -> str:
        """Why the catalog's people cannot decide an open question, and the way out; empty where they can."""
        able, quorum = self.people(), quorum_of(self.request, self.roles.askers)
        if self.state != "open" or len(able) >= quorum or "*" in self.count.approvers:
            return ""
        left = f"{quorum} must agree, and the catalog has {len(able)} who may: "
        command = f"refold approval delegate {self.request.approval_id} NAME... --replace"
        return f"{left}a login may assert the role, or `{command}`"

    def fate(self, vote: Vote) -> Fate:
        """Effect of a vote on the decision, or the reason that it has none."""
        if self.decision is not None and any(by.vote == vote.vote for by in self.decision.votes):
            return "counts"
        if fate := self._fate_by_later_vote(vote):
            return fate
        if vote in self.count.void:
            return "void"
        counts = self.decision is None and any(vote == cast for cast, _ in self.count.cast)
        return "counts" if counts else "recorded"

    def _fate_by_later_vote(self, vote: Vote) -> Fate | None:
        if vote.action not in _WITHDRAWABLE:
            return None
        later = [other for other in self.said[self.said.index(vote) + 1 :] if other.actor == vote.actor]
        live = self.live()
        if any(other.action == "withdraw" for other in later):
            return "withdrawn"
        again = vote in live and any(other in live and other.action in ballot.STANCES for other in later)
        return "superseded" if again else None

    def live(self) -> list[Vote]:
        """Votes that count, or would if their persons were entitled."""
        void = self.count.void
        return [vote for vote in self.said if vote not in void or void[vote].code == "unentitled"]


class StandingGrant(ReadModel):
    """A decision that lets the same call pass again; `used` are approvals decided by it."""

    grant: str
    state: GrantState
    run_id: str
    tool: str
    scope: str
    given_by: list[str]
    until_ms: int
    uses: int
    used: list[str]


class Question(ReadModel):
    """A question to people: may this call be sent, or (`about` is `doubt`) what was its outcome?

    `id` contains the digest of everything asked, so a decision cannot be used for another question. `quorum` of the
    `approvers` must agree; `leading` do so far. `verdict` is empty while the question is open. `held` is the reason why
    no service decides, `grant` the grant that decided. `others` are further open questions about the same call: a
    correct planner asks one at a time.
    """

    id: str = Field(serialization_alias="approval")
    state: ApprovalState
    verdict: str
    run_id: str
    tool: str
    agent: str
    requester: str
    requester_verified: bool
    args: Any
    leading: int
    quorum: int
    approvers: list[str]
    asked_ms: int
    expires_ms: int
    level: int
    held: str
    grant: str
    call_id: str
    about: str
    resolve: list[str]
    others: list[str]

    @property
    def asked_at(self) -> datetime:
        return utc_of(self.asked_ms)

    @property
    def expires_at(self) -> datetime | None:
        return utc_of(self.expires_ms) if self.expires_ms else None


class QuestionShown(Question):
    """A question with its request, votes and decision. `people` are entitled to decide, `refused` are unreadable votes,
    `log` is a conflict with the run log, `ended` is the outcome in the run."""

    people: list[str]
    request: Any
    said: list[Any]
    refused: list[Any]
    decision: Any
    grant_given: StandingGrant | None
    ended: str
    log: str


def question_row(approval: Approval) -> Question:
    return Question(**_question_fields(approval))


def _question_fields(approval: Approval) -> dict[str, Any]:
    request, decided, askers = approval.request, approval.decision, approval.roles.askers
    columns = ("run_id", "tool", "agent", "requester", "asked_ms", "expires_ms", "level", "call_id", "about")
    return {
        **{name: getattr(request, name) for name in columns},
        "id": request.approval_id,
        "state": approval.state,
        "verdict": decided.verdict if decided else "",
        "requester_verified": is_verified(request, askers),
        "args": json_text(request.args),
        "leading": approval.count.leading,
        "quorum": quorum_of(request, askers),
        "approvers": list(approval.count.approvers),
        "held": approval.held,
        "grant": decided.grant.id if decided and decided.grant and decided.grant.use else "",
        "resolve": resolve_commands(request.approval_id) if request.about == DOUBT else [],
        "others": list(approval.others),
    }


def shown_of(approval: Approval, *, grant: StandingGrant | None, ended: str, log: str) -> QuestionShown:
    return QuestionShown(
        **_question_fields(approval),
        people=list(approval.people()),
        request=plain(approval.request),
        said=[vote_row(approval, vote) for vote in approval.said],
        refused=[{"vote": vote, "reason": reason} for vote, reason in approval.refused],
        decision=plain(approval.decision),
        grant_given=grant,
        ended=ended,
        log=log,
    )


def vote_row(approval: Approval, vote: Vote) -> dict[str, Any]:
    void, fate = approval.count.void.get(vote), approval.fate(vote)
    return {**plain(vote), "counts": fate == "counts", "fate": fate, "void": void.reason if void else ""}


class ApprovalIndex:
    """Fold of requests, votes, decisions and the catalog, in order of offset; `unsound` are invalid requests by key."""

    def __init__(self, partitions: int, trust: Trust, clock_ms: Callable[[], int]) -> None:
        self._partitions, self._newest_ms, self._clock_ms = partitions, 0, clock_ms
        self.catalogs: dict[int, Catalog] = defaultdict(lambda: Catalog(trust))
        self.unsound: dict[str, str] = {}
        self.letters: dict[tuple[int, int], Objection] = {}
        self._requests: dict[str, tuple[int, ApprovalRequest]] = {}
        self._open: set[str] = set()
        self._open_of_call: dict[str, set[str]] = defaultdict(set)
        self._votes: dict[str, dict[str, tuple[str, int, int]]] = defaultdict(dict)
        self._decisions: dict[str, list[tuple[int, str]]] = defaultdict(list)

    def feed(self, record: ReadRecord) -> None:
        self._newest_ms = max(self._newest_ms, record.at_ms)
        if record.topic == CATALOG:
            self.catalogs[record.partition].follow(record.offset, record.key, record.value)
            return
        try:
            self._index_record(record)
        except (MalformedError, FoldError):
            return

    def _index_record(self, record: ReadRecord) -> None:
        if record.topic == APPROVAL_REQUESTED:
            self._index_request(record)
        elif record.value is None:
            return
        elif record.topic == APPROVAL_VOTED:
            vote = codec.decode(ApprovalVote, record.value)
            self._votes[vote.approval_id][vote.token] = vote.vote_id, record.partition, record.offset
        elif record.topic == APPROVAL_DECIDED:
            message = codec.decode(ApprovalDecision, record.value)
            if message.kind == "decision":
                self._decisions[message.approval_id].append((record.partition, message.token))
        elif record.topic == DEAD_LETTER_APPROVAL:
            letter = codec.decode(DeadLetter, record.value)
            if letter.topic == APPROVAL_VOTED:
                self.letters[letter.partition, letter.offset] = Objection(letter.code, letter.reason)

    def _index_request(self, record: ReadRecord) -> None:
        name = (record.key or b"").decode(errors="replace")
        self.unsound.pop(name, None)
        if record.value is None:
            self._open.discard(name)
            self._open_of_call[asked_about(name)].discard(name)
            return
        try:
            request = received(record.key, record.value, partition=record.partition, partitions=self._partitions)
        except MalformedError as error:
            self.unsound[name] = str(error)
            return
        if name not in self._requests:
            self._open.add(name)
            self._open_of_call[request.call_id].add(name)
            self._requests[name] = record.partition, request

    @property
    def now(self) -> int:
        """Newest time of the records and of this machine's clock, in ms."""
        return max(self._newest_ms, self._clock_ms())

    def named(self, beginning: str) -> list[str]:
        """Ids with this prefix, in order of request; ids with only a decision come last."""
        ids = dict.fromkeys([*self._requests, *self._decisions])
        return [name for name in ids if name.startswith(beginning)]

    def waiting(self, approval: str) -> bool:
        """True while the request of an approval is open in its topic."""
        return approval in self._open

    def all(self) -> list[Approval]:
        """Approvals whose request is in its topic, the oldest first; closed ones stay a day."""
        approvals = [self._approval(*request) for request in self._requests.values()]
        return sorted(approvals, key=lambda approval: (approval.request.asked_ms, approval.request.approval_id))

    def find(self, approval: str) -> Approval | None:
        request = self._requests.get(approval)
        return self._approval(*request) if request else None

    def decided(self, approval: str) -> Decision | None:
        """First validly signed decision of an approval, of any age."""
        for partition, token in self._decisions.get(approval, ()):
            try:
                parsed = Decision.parse(signature.verified(token, self.catalogs[partition].keys, use="decision"))
            except (UnauthorisedError, MalformedError):
                continue
            if parsed.approval == approval:
                return parsed
        return None

    def grants(self) -> list[StandingGrant]:
        decisions = [one for approval in self._decisions if (one := self.decided(approval))]
        uses: dict[str, list[str]] = defaultdict(list)
        for one in decisions:
            if one.grant and one.grant.use:
                uses[one.grant.id].append(one.approval)
        return [
            StandingGrant(
                grant=grant.id,
                state=self._grant_state(one, grant),
                run_id=one.run,
                tool=one.tool,
                scope=grant.scope,
                given_by=[vote.actor for vote in one.votes],
                until_ms=grant.until_ms,
                uses=grant.uses,
                used=uses[grant.id],
            )
            for one in decisions
            if (grant := one.grant) and not grant.use and grant.scope == decision.RUN
        ]

    def _grant_state(self, ruling: Decision, grant: decision.Grant) -> GrantState:
        behind = decision.behind(ruling)
        partition = self._decisions[ruling.approval][0][0]
        for vote, place in self._votes_of(partition, ruling.approval)[0].items():
            ends = vote.action == "revoke-grant" and vote.question == ruling.question and place not in self.letters
            if ends and self.catalogs[partition].roles.entitled(behind, vote.actor, vote.roles):
                return "revoked"
        return "standing" if self._clock_ms() < grant.until_ms else "expired"

    def cast(self, approval: str, vote: str) -> tuple[Vote, Cause] | None:
        """A vote by its id, with the position of its record."""
        votes = self._votes_of(home(parse_approval_id(approval)[0], self._partitions), approval)[0].items()
        return next(((cast, Cause(APPROVAL_VOTED, *place)) for cast, place in votes if cast.vote == vote), None)

    def _votes_of(self, partition: int, approval: str) -> tuple[dict[Vote, tuple[int, int]], list[tuple[str, str]]]:
        """Votes on an approval with their places, and ids of unreadable votes with the reasons."""
        votes: dict[Vote, tuple[int, int]] = {}
        refused: list[tuple[str, str]] = []
        for token, (vote_id, *place) in self._votes.get(approval, {}).items():
            try:
                votes[ballot.open_vote(token, self.catalogs[partition].keys)] = (place[0], place[1])
            except (UnauthorisedError, MalformedError) as error:
                refused.append((vote_id, error.message))
        return votes, refused

    def _approval(self, partition: int, request: ApprovalRequest) -> Approval:
        approval, catalog = request.approval_id, self.catalogs[partition]
        votes, refused = self._votes_of(partition, approval)
        letters = {vote: self.letters[place] for vote, place in votes.items() if place in self.letters}
        decided, over = self.decided(approval), approval not in self._open
        alone = {vote: void for vote, void in letters.items() if decided or void.code in SERVICE_ONLY}
        counted = ballot.count(request, votes.keys() - alone.keys(), catalog.roles, self.now)
        state: ApprovalState = "decided" if decided else "closed" if over else "open"
        return Approval(
            request,
            state,
            replace(counted, void={**counted.void, **alone}),
            tuple(sorted(votes, key=lambda vote: (vote.issued, vote.vote))),
            tuple(refused),
            decided,
            roles=catalog.roles,
            policy=catalog.policies.get(request.policy),
            held=_hold_reason(request, catalog, self._clock_ms()) if state == "open" else "",
            over=over,
            others=tuple(sorted(self._open_of_call[request.call_id] - {approval})) if not over else (),
            now=self.now,
        )


def against(state: RunState | None, approval: Approval) -> str:
    """Conflict of an open question with the run log; empty without one."""
    if approval.state != "open":
        return ""
    request = approval.request
    step = state.step_of(parse_approval_id(request.approval_id)[1]) if state else None
    opened = state.open.get(step) if state and step else None
    if state is None or step is None or opened is None:
        return "the log does not have this call"
    if opened.question is None or named(question_of(state, state.call(step), opened)).question != request.question:
        return "the log does not ask this about the call"
    return ""


def others(approval: Approval, args: str) -> str:
    """Approvers that the policy requires for other arguments; empty if the request's own may do."""
    terms = approval.judged(args)
    if terms is None or terms.allows or not terms.requirements or approval.request.requirement in terms.requirements:
        return ""
    return " or ".join(f"{needed.quorum} of {', '.join(needed.approvers)}" for needed in terms.requirements)


def said(ruling: Decision) -> str:
    """Text of a decision: its verdict, voters, and grant if it used one."""
    people = ", ".join(vote.actor for vote in ruling.votes)
    grant = f" under grant {ruling.grant.id}" if ruling.grant and ruling.grant.use else ""
    return f"{word_for(ruling.verdict, ruling.asked.get('about', ''))} by {people}{grant}"


def word_for(action: str, about: str) -> str:
    """Display text of a vote's action or verdict; those about a call in doubt have texts of their own."""
    return CAME.get(action, action) if about == DOUBT else action


def reach(approvers: Iterable[str], roles: Roles) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Persons of a list of approvers by the catalog, and roles that only logins may claim."""
    people: dict[str, None] = {}
    elsewhere: list[str] = []
    for name in approvers:
        role = name.removeprefix(ROLE)
        if role != name and role not in roles.by_role:
            elsewhere.append(name)
        elif name != "*":
            people.update(dict.fromkeys([name] if role == name else sorted(roles.by_role[role])))
    return tuple(name for name in people if name not in roles.revoked), tuple(elsewhere)


def _hold_reason(request: ApprovalRequest, catalog: Catalog, now: int) -> str:
    if request.policy not in catalog.policies:
        if not request.policy:
            return "it was asked without a policy"
        return f"its policy {request.policy[:12]} is not in the catalog"
    if not any(key.use == "decision" and key.signs_at(now) for key in catalog.keys.values()):
        return NO_KEY
    return ""


def readable(args: str) -> list[str]:
    """Lines of a JSON object, one per field; texts of several lines are unescaped."""
    value = json_text(args)
    if not isinstance(value, dict):
        return [canonical.dumps(value)]
    lines: list[str] = []
    for name, content in sorted(value.items(), key=lambda field: field[0].startswith("$")):
        if isinstance(content, str) and "\n" in content:
            lines += [f"{name}:", *(f"  | {line}" for line in content.split("\n"))]
        else:
            lines.append(f"{name}: {canonical.dumps(content)}")
    return lines
