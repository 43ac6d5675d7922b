"""Votes of people and their outcomes."""

import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, Unpack

from refold.client.operations.operation import Sender
from refold.client.reading.approval import NO_KEY, READ_TOPICS, Approval, ApprovalIndex, reach, said
from refold.client.reading.model import plain
from refold.client.reading.outcome import Voted
from refold.core import defaults
from refold.core.approval import ballot, decision, signature
from refold.core.approval.ballot import Objection, Remember, Vote
from refold.core.approval.catalog import ROLE
from refold.core.approval.decision import Decision
from refold.core.approval.question import context_edited
from refold.core.approval.requester import has_asked, quorum_of
from refold.core.approval.signature import SigningKey, Trust
from refold.core.errors import ConflictError, MalformedError, NotFoundError, RefoldError, TimedOutError, UsageError
from refold.core.events import DOUBT, Cause
from refold.core.ids import RunId, asked_about, home, is_below, parse_approval_id, parse_call_id, run_id
from refold.core.messages import ApprovalRequest, ApprovalVote
from refold.core.topics import APPROVAL_VOTED, CATALOG
from refold.core.wire import canonical
from refold.engine.ports.log import LogReader
from refold.engine.runtime.clock import clock_ms

SETTLE_S = 1.0
"""Seconds in which a counted vote may still be refused: only the service has the tools."""


class VoteFields(TypedDict, total=False):
    args: str
    result: str
    message: str
    roles: tuple[str, ...]
    to: tuple[str, ...]
    remember: Remember | None


@dataclass(frozen=True, slots=True)
class Answered:
    """Outcome of a vote. `what`: `decided` (the vote is part of the decision), `decided_otherwise`, `counted` (more
    votes are needed) or `recorded` (it cannot decide by itself)."""

    what: Literal["decided", "decided_otherwise", "counted", "recorded"]
    vote: Vote
    position: Cause
    decision: Decision | None = None
    leading: int = 0
    quorum: int = 0

    @property
    def voted(self) -> Voted:
        facts = {"position": self.position, "leading": self.leading, "quorum": self.quorum, "vote": self.vote.vote}
        return Voted(outcome=self.what, approval=self.vote.approval, decision=plain(self.decision), **facts)


ENOUGH_DIGITS = 16
"""Digits that make a digest safe against a forged collision during a decision; four do not."""


class Approvals:
    """Approvals in the log with their votes, by the catalog that a root key of `trust` signed. **Units**: seconds."""

    def __init__(
        self,
        reader: LogReader,
        trust: Trust,
        *,
        partitions: int,
        settle_s: float = SETTLE_S,
        payload_bytes: int = defaults.PAYLOAD_BYTES,
    ) -> None:
        self._reader, self._trust, self._partitions, self._settle_s = reader, trust, partitions, settle_s
        self._payload_bytes = payload_bytes

    def read(self, partition: int | None = None, topics: Iterable[str] = READ_TOPICS) -> ApprovalIndex:
        index = ApprovalIndex(self._partitions, self._trust, clock_ms)
        for topic in topics:
            for record in self._reader.scan(topic, partition):
                index.feed(record)
        return index

    def get(self, approval_id: str) -> Approval:
        """Read an approval. **Raises** MalformedError, NotFoundError; ConflictError if no planner can have asked it."""
        index = self.read(self.home_of(approval_id))
        if (approval := index.find(approval_id)) is not None:
            return approval
        if problem := index.unsound.get(approval_id):
            hint = "report it to an operator; do not vote"
            raise ConflictError(f"no service accepts the question {approval_id}: {problem}", hint=hint)
        raise _no_approval(approval_id)

    def named(self, name: str) -> str:
        """Find an approval by its id or a prefix, the id of a call, a run or one above it. Open ones come first.
        **Raises** MalformedError; NotFoundError; UsageError if several are open."""
        if "/" not in name:
            return self._open_in_family(run_id(name))
        call = asked_about(name)
        beginning = name if name != call else f"{call}~"
        index = self.read(home(parse_call_id(call)[0], self._partitions))
        candidates = index.named(beginning) or [row for row in index.unsound if row.startswith(beginning)]
        if not candidates:
            raise _no_approval(name)
        open_now = list(filter(index.waiting, candidates))
        if len(open_now) > 1:
            hint = f"report it to an operator, no planner asks so: {', '.join(open_now)}"
            raise UsageError(f"the call {call} has {len(open_now)} open approvals", hint=hint)
        return (open_now or candidates)[-1]

    def _open_in_family(self, run: RunId) -> str:
        index = self.read(home(run, self._partitions))
        ids = [a.request.approval_id for a in index.all() if is_below(a.request.run_id, run) and not a.over]
        if not ids:
            hint = f"`refold run show {run}` shows what it waits for"
            raise NotFoundError(f"run {run} and its children have no open approval", hint=hint)
        if len(ids) > 1:
            hint = f"name one: {', '.join(ids)}"
            raise UsageError(f"run {run} and its children have {len(ids)} open approvals", hint=hint)
        return ids[0]

    def vote(
        self, approval_id: str, action: str, *, question: str, actor: str, about: str = "", **fields: Unpack[VoteFields]
    ) -> Vote:
        """Build a vote on the `question` that was shown (whole digest); `about`: see `ApprovalRequest`. **Raises** as
        `get`; ConflictError if it is closed or another question, UsageError for a void or ineffective vote,
        MalformedError for an unreadable one."""
        if not _is_name(actor):
            raise UsageError(f"{actor!r} is not a name", hint="set your name with --actor")
        approval = None if action == "revoke-grant" else self._undecided(approval_id, action)
        subject = approval.request if approval else self.granted(approval_id)
        if subject.question != question:
            raise ConflictError(
                f"the question of {approval_id} is not the one that was shown",
                hint=f"`refold approval show {approval_id}`",
            )
        if approval and action in ballot.DECIDING and approval.request.about != about:
            raise _wrong_subject(approval.request, action)
        issued, quorum = clock_ms(), 1
        if approval:
            issued, quorum = approval.now, quorum_of(approval.request, approval.roles.askers)
        name = approval_id, secrets.token_hex(8), question
        vote = Vote(*name, subject.environment, actor, action, issued, **fields)
        ballot.check_vote(vote)
        if large := ballot.oversized(vote, ballot.most_said(self._payload_bytes, quorum)):
            raise UsageError(large.reason, hint="shorten it, or raise REFOLD_MAX_PAYLOAD_BYTES in all services")
        if problem := _objection(approval, vote) if approval else self._no_revoker(self.granted(approval_id), vote):
            raise UsageError(problem, hint=f"`refold approval show {approval_id}` shows who may decide, and the votes")
        return vote

    def offered(
        self, index: ApprovalIndex, approval: Approval, actor: str, roles: tuple[str, ...], key: SigningKey
    ) -> frozenset[str]:
        """Actions open to this actor's vote on an approval now."""
        request, keys = approval.request, index.catalogs[self.home_of(approval.request.approval_id)].keys
        name = request.approval_id, "none", request.question, request.environment
        vote = Vote(*name, actor, "remind", approval.now, roles, message="?")
        try:
            vote = ballot.open_vote(signature.sign(vote.payload(), key), keys)
        except RefoldError:
            return frozenset()
        # A dry run of each action: placeholders stand for arguments that people enter later.
        blank: dict[str, dict[str, Any]] = {"edit": {"args": request.args}, "delegate": {"to": ("somebody",)}}
        blank |= {"reassign": {"to": approval.count.approvers}}
        actions = ("reject", "withdraw", "comment", "remind") if approval.held else ballot.ACTIONS[:-1]
        possible = (a for a in actions if not _objection(approval, replace(vote, action=a, **blank.get(a, {}))))
        return frozenset(possible if approval.state == "open" and not approval.over else ())

    def cast(self, vote: Vote, key: SigningKey, sender: Sender, timeout_s: float) -> Answered:
        return self.answered(vote, self.send(vote, key, sender), timeout_s)

    def earlier(self, approval_id: str, vote: str) -> tuple[Vote, Cause] | None:
        return self.read(self.home_of(approval_id)).cast(approval_id, vote)

    def asked(self, approval_id: str, timeout_s: float) -> None:
        """Wait until a question of the run log reaches its own topic; return after `timeout_s` in any case."""
        begun = time.monotonic()
        for index, _ in self._rounds(self.home_of(approval_id)):
            if index.find(approval_id) or time.monotonic() - begun > timeout_s:
                return

    def granted(self, approval_id: str) -> Decision:
        """Decision that gave a grant. **Raises** NotFoundError."""
        decision = self.read(self.home_of(approval_id)).decided(approval_id)
        if decision is None or decision.grant is None:
            raise NotFoundError(f"the approval {approval_id} gave no grant", hint="`refold approval list --grants`")
        return decision

    def _no_revoker(self, grant: Decision, vote: Vote) -> str:
        """Reason why this voter may not revoke a grant; empty for those whose rights its decision needed."""
        place, behind = self.home_of(vote.approval), decision.behind(grant)
        may = self.read(place).catalogs[place].roles.entitled(behind, vote.actor, vote.roles)
        return "" if may else f"the vote would be void: {vote.actor} is none of {', '.join(behind)}"

    def _undecided(self, approval_id: str, action: str) -> Approval:
        """Read an approval for a vote on it. **Raises** as `get`; ConflictError if it is closed to this action."""
        approval = self.get(approval_id)
        if approval.decision is not None and action not in ("comment", "remind"):
            raise _decided_already(approval_id, approval.decision)
        if approval.over:
            call = approval.request.call_id
            index = self.read(self.home_of(approval_id))
            waits = next(filter(index.waiting, index.named(f"{call}~")), "")
            show = f"`refold run show {approval.request.run_id}` shows the run"
            hint = f"the run waits under {waits} now" if waits else show
            raise ConflictError(f"{approval_id} is closed", hint=hint)
        return approval

    def send(self, vote: Vote, key: SigningKey, sender: Sender) -> Cause:
        """Sign and publish a vote; return its position. **Raises** UnauthorisedError, with nothing sent, if the catalog
        has no such key, or it belongs to other names."""
        run, token = parse_approval_id(vote.approval)[0], signature.sign(vote.payload(), key)
        place = home(run, self._partitions)
        # The check before sending: a vote by an unknown key would only become a dead letter.
        ballot.open_vote(token, self.read(place, (CATALOG,)).catalogs[place].keys)
        return Cause(APPROVAL_VOTED, *sender.send(ApprovalVote(vote.approval, vote.vote, run, token)))

    def answered(self, vote: Vote, position: Cause, timeout_s: float = 30.0) -> Answered:
        """Wait for the outcome of a vote. **Raises** UnauthorisedError, ConflictError or UsageError if the service
        refused it, TimedOutError."""
        begun, settled = time.monotonic(), math.inf
        for index, _ in self._rounds(self.home_of(vote.approval)):
            if void := index.letters.get((position.partition, position.offset)):
                raise _refusal(index, vote, void, position)
            answer = _outcome_so_far(index, vote, position)
            now = time.monotonic()
            settled = min(settled, now) if answer else settled
            # What is decided is final; of the rest, something that comes later may still make another thing.
            if answer and (answer.what == "decided" or now - settled >= self._settle_s):
                return answer
            if now - begun > timeout_s:
                raise _no_answer(index, vote, counts=answer is not None, waited=f"{timeout_s:g} s")
        raise AssertionError("a tail goes on for ever")

    def watch(self) -> Iterator[ApprovalIndex]:
        """Yield one index of all approvals after each change, endlessly."""
        return (index for index, changed in self._rounds(None) if changed)

    def _rounds(self, partition: int | None) -> Iterator[tuple[ApprovalIndex, bool]]:
        """Yield an index of approvals, endlessly, and True if its topics had anything new."""
        index = ApprovalIndex(self._partitions, self._trust, clock_ms)
        tails = [self._reader.tail(topic, partition) for topic in READ_TOPICS]
        while True:
            changed = False
            for tail in tails:
                for record in tail:
                    if record is None:
                        break
                    changed = True
                    index.feed(record)
            yield index, changed

    def home_of(self, approval_id: str) -> int:
        return home(parse_approval_id(approval_id)[0], self._partitions)


def names_the_question(name: str) -> bool:
    """True if a name has enough digits to identify the question that was shown."""
    return len(name.partition("/")[2].partition("~")[2]) >= ENOUGH_DIGITS  # an id of a run may have a ~, too


def changed(args: str, settings: Mapping[str, str]) -> str:
    """JSON of a call's changed `args`; a value that is no JSON is a text. **Raises** MalformedError, UsageError."""
    values = canonical.parse(args)
    if unknown := sorted(settings.keys() - values.keys()):
        raise UsageError(f"the call has no argument {unknown[0]}", hint=f"it has {', '.join(sorted(values))}")
    for name, value in settings.items():
        try:
            new = canonical.parse(value)
        except MalformedError:
            new = value
        # An argument that was a text stays one, even if the new value looks like a number or a boolean.
        values[name] = value if isinstance(values[name], str) and isinstance(new, int | float) else new
    return canonical.dumps(values)


def _is_name(name: str) -> bool:
    return bool(name) and name == name.strip() and name.isprintable()


def _objection(approval: Approval, vote: Vote) -> str:
    """Reason why a vote would be void or without effect; empty if there is none."""
    if problem := ballot.objection(approval.request, vote, approval.now):
        return f"the vote would be void: {problem.reason}"
    # Sent, it would lie in the log and count once its person may decide.
    if vote.action in (*ballot.DECIDING, *ballot.HANDING) and (problem := approval.void(vote)):
        return f"the vote would be void: {problem.reason}{_deciders_text(approval, vote.actor)}"
    if wrong := [name for name in vote.to if not _is_name(name) or not _is_name(name.removeprefix(ROLE))]:
        return f"{wrong[0]!r} is not a name"
    objects = _OBJECTIONS.get(vote.action)
    return objects(approval, vote) if objects else ""


def _deciders_text(approval: Approval, actor: str) -> str:
    people = ", ".join(approval.people()[:10])
    revoked = f"; {actor} is revoked by the catalog" if actor in approval.roles.revoked else ""
    return (f"; {people} may decide" if people else "") + revoked


def _edit_objection(approval: Approval, vote: Vote) -> str:
    wrong = context_edited(approval.request, vote.args)
    if not wrong and (judgement := approval.judged(vote.args)):
        wrong = judgement.denial
    return f"the vote would be void: {wrong}" if wrong else ""


def _withdraw_objection(approval: Approval, vote: Vote) -> str:
    own = (cast for cast in approval.said if cast.actor == vote.actor and cast.action != "withdraw")
    if any(cast.action in ballot.STANCES and approval.fate(cast) != "withdrawn" for cast in own):
        return ""
    return f"{vote.actor} has said nothing that could be taken back"


def _is_excluded(request: ApprovalRequest, name: str) -> bool:
    return request.requirement.not_requester and has_asked(request, name)


def _delegate_objection(approval: Approval, vote: Vote) -> str:
    name = vote.to[0]
    if name == vote.actor:
        return f"{name} decides already, and cannot delegate to {name}"
    if _is_excluded(approval.request, name):
        return f"{name} has asked for the run or its arguments and may not decide on it"
    return f"{name} is revoked by the catalog and may not decide" if name in approval.roles.revoked else ""


def _reassign_objection(approval: Approval, vote: Vote) -> str:
    request, roles = approval.request, approval.roles
    more = request.requirement.escalate_to if request.level else []
    people, elsewhere = reach([*vote.to, *more], roles)
    able, quorum = [name for name in people if not _is_excluded(request, name)], quorum_of(request, roles.askers)
    if len(able) < quorum and not elsewhere and "*" not in more:
        return f"{quorum} must agree, and {', '.join(vote.to)} are {len(able)} who may decide by the catalog"
    return ""


_OBJECTIONS: dict[str, Callable[[Approval, Vote], str]] = {
    "edit": _edit_objection,
    "comment": lambda approval, vote: "" if vote.message.strip() else "an empty comment says nothing",
    "withdraw": _withdraw_objection,
    "delegate": _delegate_objection,
    "reassign": _reassign_objection,
}


def _outcome_so_far(index: ApprovalIndex, vote: Vote, position: Cause) -> Answered | None:
    approval = index.find(vote.approval)
    decided = index.decided(vote.approval)
    if vote.action not in ballot.DECIDING:
        return Answered("recorded", vote, position, decided) if _is_recorded(approval, decided, vote) else None
    if decided is not None:
        counted = any(by.vote == vote.vote for by in decided.votes)
        return Answered("decided" if counted else "decided_otherwise", vote, position, decided)
    if approval is None or approval.count.settled is not None:
        return None
    counts = any(cast.vote == vote.vote for cast, _ in approval.count.cast)
    needed = quorum_of(approval.request, approval.roles.askers)
    return Answered("counted", vote, position, leading=approval.count.leading, quorum=needed) if counts else None


def _is_recorded(approval: Approval | None, decided: Decision | None, vote: Vote) -> bool:
    """True once a vote that cannot decide is in the log, with the decision that it may have enabled."""
    if approval is None:
        return True
    decides = vote.action in ballot.HANDING and approval.count.settled is not None
    return any(other.vote == vote.vote for other in approval.said) and (decided is not None or not decides)


def _no_approval(name: str) -> NotFoundError:
    hint = "`refold approval list --state all` lists approvals; `refold run show` has those closed long ago"
    return NotFoundError(f"there is no approval {name}", hint=hint)


def _wrong_subject(request: ApprovalRequest, action: str) -> UsageError:
    # It would repeat a call in doubt, or settle an outcome that people did not look at.
    if request.about != DOUBT:
        hint = f"`refold approval show {request.approval_id}`"
        return UsageError(f"this approval asks if {request.call_id} may run, not for its outcome", hint=hint)
    ways = "--happened JSON, --did-not-happen or --give-up"
    hint = f"find out, then `refold run resolve {request.approval_id}` with {ways}"
    return UsageError(f"cannot {action}: this approval asks for the outcome of {request.call_id}", hint=hint)


def _decided_already(approval_id: str, decision: Decision, **fields: str) -> ConflictError:
    hint = f"`refold approval show {approval_id}`"
    return ConflictError(f"{approval_id} is decided already: {said(decision)}", hint=hint, **fields)


def _no_answer(index: ApprovalIndex, vote: Vote, *, counts: bool, waited: str) -> RefoldError:
    approval = index.find(vote.approval)
    voids = approval.count.void if approval else {}
    # A vote read between two lives of the service gets no dead letter: judge it here.
    void = next((void for cast, void in voids.items() if cast.vote == vote.vote), None)
    if void is not None:
        hint = "no approval service answered; start `refold serve approval`"
        return _void_vote(index, vote, void, hint=hint)
    if approval is not None and approval.held:
        ways = "`refold policy publish` puts the policy back, until then only a rejection decides"
        if approval.held == NO_KEY:
            ways = "`refold keys list`; `refold keys new NAME --use decision` makes one"
        message = f"the vote on {vote.approval} is recorded, and the approval is held: {approval.held}"
        return TimedOutError(message, hint=f"{ways}; the vote stays in the log")
    waiting = "not settled" if counts else "recorded, and nothing has come of it"
    hint = "start `refold serve approval` if none runs; the vote stays in the log"
    return TimedOutError(f"the vote on {vote.approval} is {waiting} after {waited}", hint=hint)


def _refusal(index: ApprovalIndex, vote: Vote, void: Objection, position: Cause) -> RefoldError:
    decided = index.decided(vote.approval)
    if decided is not None and void.code == "late":
        return _decided_already(vote.approval, decided, void=void.code)
    hint = f"`refold deadletter list` has it, from {position.topic}/{position.partition}/{position.offset}"
    return _void_vote(index, vote, void, hint=hint)


def _void_vote(index: ApprovalIndex, vote: Vote, void: Objection, *, hint: str) -> UsageError:
    approval = index.find(vote.approval)
    message = f"the vote on {vote.approval} does not count now, it is void ({void.code}): {void.reason}"
    message += _deciders_text(approval, vote.actor) if approval is not None and void.code == "unentitled" else ""
    back = f"`refold approval withdraw {vote.approval}` takes it back"
    later = {
        "unauthorised": "`refold keys list` shows the keys in the catalog, --actor says in whose name you vote",
        "unentitled": f"it will count if {vote.actor} may decide later; {back}",
        "late": f"it will count if there is more time; {back}",
    }
    remedy = later.get(void.code, "") if void.code == "unauthorised" or vote.action in ballot.STANCES else ""
    return UsageError(message, hint="; ".join(filter(None, (remedy, hint))), void=void.code)
