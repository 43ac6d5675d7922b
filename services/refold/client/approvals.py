"""Approvals as anyone can know them: read from the topics, counted by the rule that the service counts by.

What is shown comes from the log's records alone, so nobody is shown another question than the one they answer.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from refold.core import ballot, canonical, capability, decision, wire
from refold.core import catalog as catalogs
from refold.core.ballot import Count, Remember, Void, Vote
from refold.core.capability import SigningKey
from refold.core.catalog import Catalog, Roles
from refold.core.decision import Decision
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
from refold.ports.log import LogReader, Record

REQUESTED, VOTED, DECIDED, DEAD_LETTER = "approval-requested", "approval-voted", "approval-decided", "dead-letter"
TOPICS = (catalogs.TOPIC, REQUESTED, VOTED, DECIDED)
State = Literal["open", "decided", "closed"]
SETTLE_S = 1.0
"""How long a vote that counts by what is known here may still be refused: only the service knows the tools."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A request with all that was said of it.

    `state`: `open`, `decided`, or `closed` without a decision (expired, or its run is over). `sound`: the digest that
    votes name is that of what is shown. `refused` are votes that could not be opened, by id, `roles` those in force.
    """

    request: ApprovalRequest
    state: State
    count: Count
    said: tuple[Vote, ...]
    refused: tuple[tuple[str, str], ...]
    decision: Decision | None
    sound: bool
    roles: Roles


class Sender(Protocol):
    """What publishes votes."""

    def send(self, message: ApprovalVote) -> tuple[int, int]:
        """Publishes to the home of the run and waits for the ack; returns partition and offset."""
        ...


class Register:
    """The fold of requests, votes, decisions and the catalog, fed in order of offset per partition and topic."""

    def __init__(self) -> None:
        self.catalogs: dict[int, Catalog] = defaultdict(Catalog)
        self.letters: dict[tuple[str, int, int], DeadLetter] = {}
        self._requests: dict[str, tuple[int, ApprovalRequest]] = {}
        self._open: set[str] = set()
        self._votes: dict[str, dict[str, str]] = defaultdict(dict)
        self._decisions: dict[str, list[tuple[int, str]]] = defaultdict(list)

    def feed(self, record: Record) -> None:
        """Takes a record; what cannot be read says nothing."""
        if record.topic == catalogs.TOPIC:
            self.catalogs[record.partition].follow(record.offset, record.key, record.value)
            return
        try:
            self._take(record)
        except (MalformedError, FoldError):
            return

    def _take(self, record: Record) -> None:
        if record.value is None:
            self._open.discard((record.key or b"").decode(errors="replace"))
        elif record.topic == REQUESTED:
            request = wire.decode(ApprovalRequest, record.value)
            known = self._requests.get(request.approval_id)
            if known is None:
                self._open.add(request.approval_id)
            if known is None or request.level > known[1].level:
                self._requests[request.approval_id] = record.partition, request
        elif record.topic == VOTED:
            vote = wire.decode(ApprovalVote, record.value)
            self._votes[vote.approval_id][vote.token] = vote.vote_id
        elif record.topic == DECIDED:
            found = wire.decode(ApprovalDecision, record.value)
            if found.kind == "decision":
                self._decisions[found.approval_id].append((record.partition, found.token))
        elif record.topic == DEAD_LETTER:
            letter = wire.decode(DeadLetter, record.value)
            self.letters[letter.topic, letter.partition, letter.offset] = letter

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
                found = Decision.parse(capability.verify(token, self.catalogs[partition].keys, use="decision"))
            except (UnauthorisedError, MalformedError):
                continue
            if found.approval == name:
                return found
        return None

    def _approval(self, partition: int, request: ApprovalRequest) -> Approval:
        name, catalog = request.approval_id, self.catalogs[partition]
        said: list[Vote] = []
        refused: list[tuple[str, str]] = []
        for token, vote_id in self._votes.get(name, {}).items():
            try:
                said.append(ballot.opened(token, catalog.keys))
            except (UnauthorisedError, MalformedError) as error:
                refused.append((vote_id, error.message))
        decided = self.decided(name)
        state: State = "decided" if decided else "open" if name in self._open else "closed"
        counted = ballot.count(request, said, catalog.roles)
        ordered = tuple(sorted(said, key=lambda vote: (vote.issued, vote.vote)))
        sound = decision.question(request) == request.question
        return Approval(request, state, counted, ordered, tuple(refused), decided, sound, catalog.roles)


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
        found = self.read(self._home(name)).find(name)
        if found is None:
            raise NotFoundError(
                f"there is no approval {name}",
                hint="`refold approval list --state all`; what is long over is in `refold run show`",
            )
        return found

    def vote(self, name: str, action: str, *, actor: str, remember: Remember | None = None, **more: object) -> Vote:
        """A vote on an approval as the log has it; `more` are fields of `Vote`.

        **Raises** as `get`; ConflictError when it is not open any more, UsageError for a vote that would be void.
        """
        request = None if action == "revoke-grant" else self._asked(name, action)
        if request is None:
            given = self.read(self._home(name)).decided(name)
            if given is None or given.grant is None:
                raise NotFoundError(f"the approval {name} gave no grant", hint="`refold approval list --state decided`")
            question, environment = given.question, given.environment
        else:
            question, environment = request.question, request.environment
        vote = Vote(
            approval=name,
            vote=secrets.token_hex(8),
            question=question,
            environment=environment,
            actor=actor,
            action=action,
            issued=time.time_ns() // 1_000_000,
            remember=remember,
            **more,  # type: ignore[arg-type]
        )
        if request and (problem := ballot.objection(request, vote)):
            raise UsageError(f"the vote would be void: {problem.reason}")
        return vote

    def _asked(self, name: str, action: str) -> ApprovalRequest:
        found = self.get(name)
        if found.decision is not None and action not in ("comment", "remind"):
            raise ConflictError(f"{name} is decided already: {said(found.decision)}")
        if found.state == "closed":
            raise ConflictError(f"{name} is closed", hint="`refold run show` tells what became of the run")
        if not found.sound:
            raise ConflictError(f"the question of {name} is not the digest of what it shows", hint="tell an operator")
        return found.request

    def send(self, vote: Vote, key: SigningKey, sender: Sender) -> Cause:
        """Signs and publishes a vote; returns where it lies."""
        run, _ = parse_call_id(vote.approval)
        token = capability.sign(vote.payload(), key)
        return Cause(VOTED, *sender.send(ApprovalVote(vote.approval, vote.vote, run, token)))

    def answered(self, vote: Vote, position: Cause, timeout_s: float = 30.0) -> Answer:
        """Waits until it is known what became of a vote.

        **Raises** what the service says of a void vote (UnauthorisedError, ConflictError, UsageError), TimedOutError.
        """
        register, begun = Register(), time.monotonic()
        settled: float | None = None
        for _ in self._rounds(register, self._home(vote.approval)):
            if letter := register.letters.get((position.topic, position.partition, position.offset)):
                raise _refusal(vote, letter, position)
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
        tails = [self._reader.tail(topic, partition) for topic in (*TOPICS, DEAD_LETTER)]
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
    """Arguments with some of them changed. What is no JSON is a text. **Raises** MalformedError, UsageError."""
    found = canonical.parse(args)
    if unknown := sorted(settings.keys() - found.keys()):
        raise UsageError(f"the call has no argument {unknown[0]}", hint=f"it has {', '.join(sorted(found))}")
    for name, value in settings.items():
        try:
            found[name] = canonical.parse(value)
        except MalformedError:
            found[name] = value
    return canonical.dumps(found)


def _answer(register: Register, vote: Vote, position: Cause) -> tuple[Answer | None, bool]:
    """What became of a vote by what is known, and whether that can only be so."""
    found = register.find(vote.approval)
    decided = register.decided(vote.approval)
    if vote.action not in ballot.DECIDING:
        known = found is None or any(each.vote == vote.vote for each in found.said)
        return (Answer("recorded", vote.approval, position, decided) if known else None), False
    if decided is not None:
        ours = any(by.vote == vote.vote for by in decided.votes)
        what: Literal["decided", "decided_otherwise"] = "decided" if ours else "decided_otherwise"
        return Answer(what, vote.approval, position, decided), ours
    counts = found is not None and any(each.vote == vote.vote for each, _ in found.count.cast)
    if found is None or not counts or found.count.outcome is not None:
        return None, False
    needed = found.request.requirement.quorum
    return Answer("counted", vote.approval, position, leading=found.count.leading, quorum=needed), False


def _unanswered(register: Register, vote: Vote, *, counts: bool, waited: str) -> RefoldError:
    """What there is to say when no service has said anything: a vote that came between two of them gets no letter."""
    found = register.find(vote.approval)
    voids = found.count.void if found else {}
    void = next((void for each, void in voids.items() if each.vote == vote.vote), None)
    if void is not None:
        return _void(vote, void, hint="it is void by the records alone; no approval service was there to say so")
    waiting = "not settled" if counts else "recorded, and nothing has come of it"
    hint = "is an approval service running? The vote stays in the log, nothing is lost"
    return TimedOutError(f"the vote on {vote.approval} is {waiting} after {waited}", hint=hint)


def _refusal(vote: Vote, letter: DeadLetter, position: Cause) -> RefoldError:
    hint = f"`refold deadletter list` has it, from {position.topic}/{position.partition}/{position.offset}"
    return _void(vote, Void(letter.code, letter.reason), hint=hint)


def _void(vote: Vote, void: Void, *, hint: str) -> RefoldError:
    message = f"the vote on {vote.approval} is void ({void.code}): {void.reason}"
    if void.code == "unauthorised":
        return UnauthorisedError(message, hint="`refold keys list` shows the keys in the catalog", reason="vote")
    return ConflictError(message, hint=hint) if void.code == "late" else UsageError(message, hint=hint)
