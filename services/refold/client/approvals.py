"""Approvals as anyone can know them: read from the topics, counted by the rule that the service counts by.

What is shown comes from the log's records alone, so nobody is shown another question than the one they answer.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from refold.core.approval import ballot, decision, signature
from refold.core.approval import catalog as catalogs
from refold.core.approval.ballot import Count, Objection, Remember, Vote
from refold.core.approval.catalog import Catalog, Roles
from refold.core.approval.decision import Decision, Grant
from refold.core.approval.policy import FALLBACK
from refold.core.approval.signature import PublicKey, SigningKey
from refold.core.errors import (
    ConflictError,
    FoldError,
    MalformedError,
    NotFoundError,
    RefoldError,
    TimedOutError,
    UnauthorisedError,
    UsageError,
)
from refold.core.events import Cause
from refold.core.ids import home, parse_call_id
from refold.core.messages import ApprovalDecision, ApprovalRequest, ApprovalVote, DeadLetter
from refold.core.topics import APPROVAL_DECIDED, APPROVAL_REQUESTED, APPROVAL_VOTED, CATALOG, DEAD_LETTER
from refold.core.wire import canonical, codec
from refold.ports.log import LogReader, Record

TOPICS = (CATALOG, APPROVAL_REQUESTED, APPROVAL_VOTED, APPROVAL_DECIDED, DEAD_LETTER)
SERVICE_ONLY = ("edit_not_possible", "too_large", "too_many")
"""What only the service can say of a vote, because it knows the tools and its own limits; the rest is counted here."""

NO_KEY = "no key that signs decisions is in force"
Fate = Literal["counts", "void", "superseded", "withdrawn", "recorded"]
State = Literal["open", "decided", "closed"]
SETTLE_S = 1.0
"""How long a vote that counts by what is known here may still be refused: only the service knows the tools."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A request with all that was said of it.

    `state`: `open`, `decided`, or `closed` without a decision (expired, or its run is over). `sound`: the digest that
    votes name is that of what is shown. `refused` are votes that could not be opened, by id, `roles` those in force.
    `held` is why no service decides while it is open, as far as the catalog tells; `over`: its run does not wait for it
    any more.
    """

    request: ApprovalRequest
    state: State
    count: Count
    said: tuple[Vote, ...]
    refused: tuple[tuple[str, str], ...]
    decision: Decision | None
    sound: bool
    roles: Roles
    held: str
    over: bool

    def may_decide(self, name: str) -> bool:
        """Whether a word of theirs would count now, also by delegation; what only their login says is not known."""
        asked = self.request
        probe = Vote(asked.approval_id, "?", asked.question, asked.environment, name, "approve", asked.asked_ms)
        others = [vote for vote in self.live() if vote.actor != name or vote.action not in ballot.SAYING]
        return any(vote == probe for vote, _ in ballot.count(asked, [*others, probe], self.roles).cast)

    def people(self) -> tuple[str, ...]:
        """Everybody who may decide, by name: roles spelt out, those included to whom it was delegated."""
        named, _ = reach(self.count.approvers, self.roles)
        deputies = (vote.to[0] for vote in self.said if vote.action == "delegate")
        return tuple(filter(self.may_decide, dict.fromkeys([*named, *deputies])))

    def fate(self, vote: Vote) -> Fate:
        """What a vote is worth by now."""
        if self.decision is not None and any(by.vote == vote.vote for by in self.decision.votes):
            return "counts"
        later = [each for each in self.said[self.said.index(vote) + 1 :] if each.actor == vote.actor]
        live = self.live()
        if vote.action in ballot.SAYING and vote.action != "withdraw":
            if any(each.action == "withdraw" for each in later):
                return "withdrawn"
            if vote in live and any(each in live and each.action in ballot.SAYING for each in later):
                return "superseded"
        if vote in self.count.void:
            return "void"
        counts = self.decision is None and any(vote == cast for cast, _ in self.count.cast)
        return "counts" if counts else "recorded"

    def live(self) -> list[Vote]:
        """The votes that are counted, or would be if their people were entitled."""
        void = self.count.void
        return [vote for vote in self.said if vote not in void or void[vote].code == "unentitled"]


@dataclass(frozen=True, slots=True)
class Granted:
    """A decision that lets the same call pass again. `uses` are the approvals that it has decided since."""

    given: Decision
    grant: Grant
    state: Literal["standing", "revoked", "expired"]
    uses: tuple[str, ...]


class Sender(Protocol):
    """What publishes votes."""

    def send(self, message: ApprovalVote) -> tuple[int, int]:
        """Publishes to the home of the run and waits for the ack; returns partition and offset."""
        ...


class Register:
    """The fold of requests, votes, decisions and the catalog, fed in order of offset per partition and topic."""

    def __init__(self) -> None:
        self.catalogs: dict[int, Catalog] = defaultdict(Catalog)
        self.letters: dict[tuple[int, int], Objection] = {}
        self._requests: dict[str, tuple[int, ApprovalRequest]] = {}
        self._open: set[str] = set()
        self._votes: dict[str, dict[str, tuple[str, int, int]]] = defaultdict(dict)
        self._decisions: dict[str, list[tuple[int, str]]] = defaultdict(list)

    def feed(self, record: Record) -> None:
        """Takes a record; what cannot be read says nothing."""
        if record.topic == CATALOG:
            self.catalogs[record.partition].follow(record.offset, record.key, record.value)
            return
        try:
            self._take(record)
        except (MalformedError, FoldError):
            return

    def _take(self, record: Record) -> None:
        if record.value is None:
            if record.topic == APPROVAL_REQUESTED:
                self._open.discard((record.key or b"").decode(errors="replace"))
        elif record.topic == APPROVAL_REQUESTED:
            request = codec.decode(ApprovalRequest, record.value)
            known = self._requests.get(request.approval_id)
            if known is None:
                self._open.add(request.approval_id)
            if known is None or request.level > known[1].level:
                self._requests[request.approval_id] = record.partition, request
        elif record.topic == APPROVAL_VOTED:
            vote = codec.decode(ApprovalVote, record.value)
            self._votes[vote.approval_id][vote.token] = vote.vote_id, record.partition, record.offset
        elif record.topic == APPROVAL_DECIDED:
            found = codec.decode(ApprovalDecision, record.value)
            if found.kind == "decision":
                self._decisions[found.approval_id].append((record.partition, found.token))
        elif record.topic == DEAD_LETTER:
            letter = codec.decode(DeadLetter, record.value)
            if letter.topic == APPROVAL_VOTED:
                self.letters[letter.partition, letter.offset] = Objection(letter.code, letter.reason)

    def all(self) -> list[Approval]:
        """Every approval whose request is in its topic, the oldest first. Closed ones stay there for about a day."""
        found = [self._approval(*known) for known in self._requests.values()]
        return sorted(found, key=lambda approval: (approval.request.asked_ms, approval.request.approval_id))

    def find(self, name: str) -> Approval | None:
        """An approval by its id."""
        known = self._requests.get(name)
        return self._approval(*known) if known else None

    def decided(self, name: str) -> Decision | None:
        """The first decision of an approval whose signature holds, however long ago it was made."""
        for partition, token in self._decisions.get(name, ()):
            try:
                found = Decision.parse(signature.verified(token, self.catalogs[partition].keys, use="decision"))
            except (UnauthorisedError, MalformedError):
                continue
            if found.approval == name:
                return found
        return None

    def grants(self) -> list[Granted]:
        """Every grant that is in the log, and what has become of it."""
        found = [given for name in self._decisions if (given := self.decided(name)) and given.grant]
        uses: dict[str, list[str]] = defaultdict(list)
        for given in found:
            if given.grant and given.grant.use:
                uses[given.grant.id].append(given.approval)
        granted = [(given, given.grant) for given in found if given.grant and not given.grant.use]
        return [Granted(given, grant, self._standing(given, grant), tuple(uses[grant.id])) for given, grant in granted]

    def _standing(self, given: Decision, grant: Grant) -> Literal["standing", "revoked", "expired"]:
        behind = decision.behind(given)
        partition = self._decisions[given.approval][0][0]
        for vote, place in self._said(partition, given.approval)[0].items():
            ends = vote.action == "revoke-grant" and vote.question == given.question and place not in self.letters
            if ends and self.catalogs[partition].roles.entitled(behind, vote.actor, vote.roles):
                return "revoked"
        return "standing" if _now() < grant.until_ms else "expired"

    def _said(self, partition: int, name: str) -> tuple[dict[Vote, tuple[int, int]], list[tuple[str, str]]]:
        """The votes on an approval with their places, and those that could not be opened."""
        said: dict[Vote, tuple[int, int]] = {}
        refused: list[tuple[str, str]] = []
        for token, (vote_id, *place) in self._votes.get(name, {}).items():
            try:
                said[ballot.open_vote(token, self.catalogs[partition].keys)] = (place[0], place[1])
            except (UnauthorisedError, MalformedError) as error:
                refused.append((vote_id, error.message))
        return said, refused

    def _approval(self, partition: int, request: ApprovalRequest) -> Approval:
        name, catalog = request.approval_id, self.catalogs[partition]
        said, refused = self._said(partition, name)
        letters = {vote: self.letters[place] for vote, place in said.items() if place in self.letters}
        decided, over = self.decided(name), name not in self._open
        alone = {vote: void for vote, void in letters.items() if decided or void.code in SERVICE_ONLY}
        counted = ballot.count(request, said.keys() - alone.keys(), catalog.roles)
        state: State = "decided" if decided else "closed" if over else "open"
        return Approval(
            request,
            state,
            replace(counted, void={**counted.void, **alone}),
            tuple(sorted(said, key=lambda vote: (vote.issued, vote.vote))),
            tuple(refused),
            decided,
            sound=decision.question_digest(request) == request.question,
            roles=catalog.roles,
            held=_held(request, catalog) if state == "open" else "",
            over=over,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a vote.

    `what`: `decided` (it is part of the decision), `decided_otherwise`, `counted` (it counts, more are needed), or
    `recorded` (it is said, and decides nothing by itself).
    """

    what: Literal["decided", "decided_otherwise", "counted", "recorded"]
    approval: str
    position: Cause
    decision: Decision | None = None
    leading: int = 0
    quorum: int = 0


class Approvals:
    """The approvals in the log, and what is said of them. **Units**: timeouts and `settle_s` in seconds."""

    def __init__(self, reader: LogReader, *, partitions: int, settle_s: float = SETTLE_S) -> None:
        self._reader, self._partitions, self._settle_s = reader, partitions, settle_s

    def read(self, partition: int | None = None) -> Register:
        """Everything that is in the topics now."""
        register = Register()
        for topic in TOPICS:
            for record in self._reader.scan(topic, partition):
                register.feed(record)
        return register

    def get(self, name: str) -> Approval:
        """One approval. **Raises** MalformedError for what is no approval's id, NotFoundError."""
        register = self.read(self._home(name))
        found = register.find(name)
        if found is None:
            asked = [each.request.approval_id for each in register.all() if each.request.call_id == name]
            hint = "`refold approval list --state all`; what is long over is in `refold run show`"
            if asked:
                hint = f"{name} is the call; it is asked about as {asked[-1]}"
            raise NotFoundError(f"there is no approval {name}", hint=hint)
        return found

    def vote(self, name: str, action: str, *, actor: str, remember: Remember | None = None, **more: object) -> Vote:
        """A vote on an approval as the log has it; `more` are fields of `Vote`.

        **Raises** as `get`; ConflictError when it is not open any more, UsageError for a vote that would be void or
        come to nothing, MalformedError for one that nobody could read.
        """
        if not _is_name(actor):
            raise UsageError(f"{actor!r} is not a name", hint="--actor says in whose name you vote")
        found = None if action == "revoke-grant" else self._asked(name, action)
        if found is None:
            given = self.read(self._home(name)).decided(name)
            if given is None or given.grant is None:
                raise NotFoundError(f"the approval {name} gave no grant", hint="`refold approval grants`")
            question, environment = given.question, given.environment
        else:
            question, environment = found.request.question, found.request.environment
        vote = Vote(
            approval=name,
            vote=secrets.token_hex(8),
            question=question,
            environment=environment,
            actor=actor,
            action=action,
            issued=_now(),
            remember=remember,
            **more,  # type: ignore[arg-type]
        )
        Vote.parse(vote.payload(), PublicKey("", "vote", ""))
        if found is not None and (problem := _objection(found, vote)):
            raise UsageError(problem, hint="`refold approval show` tells who may decide, and what was said")
        return vote

    def _asked(self, name: str, action: str) -> Approval:
        found, talk = self.get(name), action in ("comment", "remind")
        if found.decision is not None and not talk:
            raise _decided(name, found.decision)
        if found.over:
            raise ConflictError(f"{name} is closed", hint="`refold run show` tells what became of the run")
        if not found.sound:
            raise ConflictError(f"the question of {name} is not the digest of what it shows", hint="tell an operator")
        return found

    def send(self, vote: Vote, key: SigningKey, sender: Sender) -> Cause:
        """Signs and publishes a vote; returns where it lies."""
        run, _ = parse_call_id(vote.approval)
        token = signature.sign(vote.payload(), key)
        return Cause(APPROVAL_VOTED, *sender.send(ApprovalVote(vote.approval, vote.vote, run, token)))

    def answered(self, vote: Vote, position: Cause, timeout_s: float = 30.0) -> Answer:
        """Waits until it is known what became of a vote.

        **Raises** what the service says of a void vote (UnauthorisedError, ConflictError, UsageError), TimedOutError.
        """
        register, begun = Register(), time.monotonic()
        settled: float | None = None
        for _ in self._rounds(register, self._home(vote.approval)):
            if void := register.letters.get((position.partition, position.offset)):
                raise _refusal(register, vote, void, position)
            answer, final = _answer(register, vote, position)
            now = time.monotonic()
            settled = settled or (now if answer else None)
            if answer and (final or (settled is not None and now - settled >= self._settle_s)):
                return answer
            if now - begun > timeout_s:
                raise _unanswered(register, vote, counts=answer is not None, waited=f"{timeout_s:g} s")
        raise AssertionError("a tail goes on for ever")

    def watch(self) -> Iterator[Register]:
        """What is known, again after every moment in which something came, for ever."""
        register = Register()
        for changed in self._rounds(register, None):
            if changed:
                yield register

    def _rounds(self, register: Register, partition: int | None) -> Iterator[bool]:
        """Feeds the register, topic by topic up to where nothing is new; tells each time whether anything was."""
        tails = [self._reader.tail(topic, partition) for topic in TOPICS]
        while True:
            changed = False
            for tail in tails:
                for record in tail:
                    if record is None:
                        break
                    changed = True
                    register.feed(record)
            yield changed

    def _home(self, name: str) -> int:
        return home(parse_call_id(name)[0], self._partitions)


def said(found: Decision) -> str:
    """A decision in a few words."""
    people = ", ".join(vote.actor for vote in found.votes)
    grant = f" under grant {found.grant.id}" if found.grant and found.grant.use else ""
    return f"{found.verdict} by {people}{grant}"


def canonical_json(text: str) -> str:
    """A JSON text in its one form, as votes hold it. **Raises** MalformedError."""
    return canonical.dumps(canonical.parse(text))


def changed(args: str, settings: Mapping[str, str]) -> str:
    """Arguments with some of them changed. **Raises** MalformedError, UsageError.

    What is no JSON is a text, and so is a number, true or false in the place of a text.
    """
    found = canonical.parse(args)
    if unknown := sorted(settings.keys() - found.keys()):
        raise UsageError(f"the call has no argument {unknown[0]}", hint=f"it has {', '.join(sorted(found))}")
    for name, value in settings.items():
        try:
            new = canonical.parse(value)
        except MalformedError:
            new = value
        found[name] = value if isinstance(found[name], str) and isinstance(new, int | float) else new
    return canonical.dumps(found)


def reach(approvers: Iterable[str], roles: Roles) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The people whom a list of approvers means by the catalog, and the roles in it that only logins tell."""
    people: dict[str, None] = {}
    elsewhere: list[str] = []
    for name in approvers:
        role = name.removeprefix(catalogs.ROLE)
        if role != name and role not in roles.by_role:
            elsewhere.append(name)
        elif name != "*":
            people.update(dict.fromkeys([name] if role == name else sorted(roles.by_role[role])))
    return tuple(name for name in people if name not in roles.revoked), tuple(elsewhere)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _is_name(name: str) -> bool:
    """Whether people can tell it from every other name that they are shown."""
    return bool(name) and name == name.strip() and name.isprintable()


def _held(request: ApprovalRequest, catalog: Catalog) -> str:
    """Why no service can decide, as far as the catalog tells."""
    if request.policy not in catalog.policies and (catalog.current or request.requirement != FALLBACK):
        if not request.policy:
            return "it was asked without a policy, and by now one is in force"
        return f"its policy {request.policy[:12]} is not in the catalog"
    if not any(key.use == "decision" and key.signs_at(_now()) for key in catalog.keys.values()):
        return NO_KEY
    return ""


def _objection(found: Approval, vote: Vote) -> str:
    """Why a vote should not be sent: it would be void, or nothing could come of it."""
    request, to = found.request, vote.to
    if problem := ballot.objection(request, vote):
        return f"the vote would be void: {problem.reason}"
    if wrong := [name for name in to if not _is_name(name) or not _is_name(name.removeprefix(catalogs.ROLE))]:
        return f"{wrong[0]!r} is not a name"
    if vote.action == "comment" and not vote.message.strip():
        return "an empty comment says nothing"
    if vote.action == "withdraw" and not any(
        each.actor == vote.actor and each.action in ballot.SAYING and found.fate(each) != "withdrawn"
        for each in found.said
        if each.action != "withdraw"
    ):
        return f"{vote.actor} has said nothing that could be taken back"
    asker = request.requester if request.requirement.not_requester else ""
    if vote.action == "delegate":
        return _no_deputy(to[0], vote.actor, asker, found.roles)
    if vote.action == "reassign":
        if problem := ballot.count(request, [*found.live(), vote], found.roles).void.get(vote):
            return f"the vote would be void: {problem.reason}"
        more = request.requirement.escalate_to if request.level else []
        people, elsewhere = reach([*to, *more], found.roles)
        able, quorum = [name for name in people if name != asker], request.requirement.quorum
        if len(able) < quorum and not elsewhere and "*" not in more:
            return f"{quorum} must agree, and {', '.join(to)} are {len(able)} who may decide by the catalog"
    return ""


def _no_deputy(name: str, actor: str, asker: str, roles: Roles) -> str:
    if name == actor:
        return f"{name} decides already, and cannot delegate to {name}"
    if name == asker:
        return f"{name} has asked for the run and may not decide on it"
    return f"{name} is revoked by the catalog and may not decide" if name in roles.revoked else ""


def _answer(register: Register, vote: Vote, position: Cause) -> tuple[Answer | None, bool]:
    """What became of a vote by what is known, and whether that can only be so."""
    found = register.find(vote.approval)
    decided = register.decided(vote.approval)
    if vote.action not in ballot.DECIDING:
        known = found is None or any(each.vote == vote.vote for each in found.said)
        decides = vote.action in ("delegate", "reassign") and found is not None and found.count.settled is not None
        known = known and (decided is not None or not decides)  # it has given earlier votes their weight
        return (Answer("recorded", vote.approval, position, decided) if known else None), False
    if decided is not None:
        ours = any(by.vote == vote.vote for by in decided.votes)
        what: Literal["decided", "decided_otherwise"] = "decided" if ours else "decided_otherwise"
        return Answer(what, vote.approval, position, decided), ours
    counts = found is not None and any(each.vote == vote.vote for each, _ in found.count.cast)
    if found is None or not counts or found.count.settled is not None:
        return None, False
    needed = found.request.requirement.quorum
    return Answer("counted", vote.approval, position, leading=found.count.leading, quorum=needed), False


def _decided(name: str, found: Decision) -> ConflictError:
    return ConflictError(f"{name} is decided already: {said(found)}", hint=f"`refold approval show {name}`")


def _unanswered(register: Register, vote: Vote, *, counts: bool, waited: str) -> RefoldError:
    """What there is to say when no service has said anything: a vote that came between two of them gets no letter."""
    found = register.find(vote.approval)
    voids = found.count.void if found else {}
    void = next((void for each, void in voids.items() if each.vote == vote.vote), None)
    if void is not None:
        return _void(
            register, vote, void, hint="it is void by the records alone; no approval service was there to say so"
        )
    if found is not None and found.held:
        ways = "`refold policy publish` puts the policy back, until then only a rejection decides"
        if found.held == NO_KEY:
            ways = "`refold keys list`; `refold keys new NAME --use decision` makes one"
        message = f"the vote on {vote.approval} is recorded, and the approval is held: {found.held}"
        return TimedOutError(message, hint=f"{ways}; the vote stays in the log")
    waiting = "not settled" if counts else "recorded, and nothing has come of it"
    hint = "is an approval service running? The vote stays in the log, nothing is lost"
    return TimedOutError(f"the vote on {vote.approval} is {waiting} after {waited}", hint=hint)


def _refusal(register: Register, vote: Vote, void: Objection, position: Cause) -> RefoldError:
    decided = register.decided(vote.approval)
    if decided is not None and void.code == "late":
        return _decided(vote.approval, decided)
    hint = f"`refold deadletter list` has it, from {position.topic}/{position.partition}/{position.offset}"
    return _void(register, vote, void, hint=hint)


def _void(register: Register, vote: Vote, void: Objection, *, hint: str) -> UsageError:
    found = register.find(vote.approval)
    message = f"the vote on {vote.approval} does not count now, it is void ({void.code}): {void.reason}"
    if found is not None and vote.actor in found.roles.revoked:
        message += f"; {vote.actor} is revoked by the catalog"
    back = f"`refold approval withdraw {vote.approval}` takes it back"
    later = {
        "unauthorised": "`refold keys list` shows the keys in the catalog, --actor says in whose name you vote",
        "unentitled": f"it will count if {vote.actor} may decide later; {back}",
        "late": f"it will count if there is more time; {back}",
    }
    known = later.get(void.code, "") if void.code == "unauthorised" or vote.action in ballot.SAYING else ""
    return UsageError(message, hint="; ".join(filter(None, (known, hint))), void=void.code)
