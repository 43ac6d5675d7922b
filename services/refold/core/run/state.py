"""State of a run at one moment. Only the fold creates it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from operator import attrgetter
from typing import Literal, NamedTuple

from immutables import Map

from refold.core import events
from refold.core.errors import FoldError
from refold.core.ids import CallId, EntryId, RunId, approval_id, call_id, parse_call_id
from refold.core.run.account import BudgetAccount
from refold.core.run.chain import Head
from refold.core.run.mailbox import NO_MAIL, Mailbox
from refold.core.run.persistent import EMPTY, PersistentList, PersistentMap, stable_repr

NO_EDIT = (0, "", "", "")


class Retried(NamedTuple):
    """Immutable effect of retries on a run. Limits are set by operators; 0: none, -1: no deadline."""

    at: int = 0  # seq of the last retry
    left: tuple[tuple[int, int], ...] = ()  # steps left behind, as (first, last)
    redriven: Map[int, int] = EMPTY  # seqs of repeated calls by step
    superseded: Map[int, int] = EMPTY  # steps by their earlier seqs in `redriven`
    edit: tuple[int, str, str, str] = NO_EDIT  # step, its new arguments, tool, author
    most_steps: int = 0
    most_bytes: int = 0
    deadline_ms: int = 0
    most_children: int = 0

    def step_before(self, step: int) -> int:
        """Last step up to this one that was not left behind; 0 if there is none."""
        for first, last in reversed(self.left):
            step = first - 1 if first <= step <= last else step
        return step

    def counts(self, step: int) -> bool:
        return not any(first <= step <= last for first, last in self.left)

    def __repr__(self) -> str:
        return stable_repr(self)


ONCE = Retried()


def next_step(step: int, left: Iterable[tuple[int, int]]) -> int:
    """Number of the next step; steps `left` behind keep theirs."""
    for first, last in left:
        step = last if step + 1 == first else step
    return step + 1


Status = Literal["pending", "running", "suspended", "completed", "failed", "cancelled", "continued"]
StepPhase = Literal[
    "proposed", "approval", "dispatched", "backoff", "doubt", "held", "sleep", "wait", "callback", "child"
]
_Awaited = events.CallProposed | events.SleepStarted | events.WaitStarted | events.CallbackCreated | events.ChildStarted
_Sent = events.EventPublished | events.SignalSent | events.SignalAnswered | events.RunSubmitted
Step = _Awaited | events.NoteRecorded | events.CheckpointReached | _Sent
_Answers = events.CallCompleted | events.CallbackCompleted | events.ChildCompleted | events.SignalReceived
Settled = _Answers | events.CallFailed | events.CallbackFailed | events.SleepEnded | events.WaitExpired
"""Outcomes of a step; for a wait, the signal that it took."""

SENT_BACK = frozenset({"decision_expired", "decision_revoked", "halted", "policy_changed", "tool_changed"})
"""Refusals of a permitted call by an executor: it is judged again, and the attempt costs no retry."""


class Asked(NamedTuple):
    """Open approval. `seq` is its request's, `question` the digest of the present question."""

    seq: int
    event: events.ApprovalRequested
    approvers: tuple[str, ...]
    asked_ms: int
    expires_ms: int
    escalated: bool
    question: str = ""

    @property
    def due_ms(self) -> int:
        """Time of its escalation or expiry; 0: never."""
        wait = 0 if self.escalated else self.event.requirement.escalate_ms
        due = [at for at in (self.asked_ms + wait if wait else 0, self.expires_ms) if at]
        return min(due, default=0)


class OpenStep(NamedTuple):
    """Step without an outcome; immutable. `phase`: `proposed`, `approval` (people decide, see `question`),
    `dispatched`, `backoff` (next attempt at `due_ms`), `doubt` (settled by an operator, or by people if there is a
    `question`), `held` (attempts are used up, an operator decides), `sleep`, `wait` (for a signal; `failure` is an
    error of its match), `callback` or `child`."""

    phase: StepPhase
    seq: int
    due_ms: int = 0
    attempt: int = 0
    dispatches: int = 0  # requests of this attempt
    first_sent_ms: int = 0
    sent_ms: int = 0  # last dispatch of this attempt
    may_have_happened: bool = False  # an earlier attempt may have had its effect
    failure: events.Failure | None = None
    policy: str = ""  # judged the call last
    question: Asked | None = None
    decision: events.ApprovalDecided | None = None  # last one of people
    uncounted: int = 0  # attempts that cost no retry
    doubted_ms: int = 0  # start of a doubt or hold
    rounds: int = 0  # number of questions
    past: tuple[events.Earlier, ...] = ()  # earlier attempts to show in a question
    settled: events.ApprovalDecided | None = None  # people's finding that earlier attempts had no effect
    given_up_at: int = 0  # seq of the event that gave it up


class LastCommand(NamedTuple):
    """Newest request of a role to pause or resume: time, offset (of a parent: seq), and latest time of a signature."""

    ms: int = 0
    place: int = 0
    signed_ms: int = 0


WAITING = frozenset({"sleep", "doubt", "held", "backoff", "approval", "wait", "callback", "child"})
"""Phases of a step that waits for time or for others: no executor or planner works on it."""

CHAINED = frozenset({"probed", "once"})
"""Effect classes with a claim chain: even a wiped ledger may not let two executors act on them."""

_NO_CALLS = frozenset({"sleep", "wait", "callback", "child"})
_OF_CALLS = frozenset({events.CallCompleted, events.CallFailed})

BY_SEQ = attrgetter("seq")
END_STATUSES: Mapping[type[events.Terminal], Status] = {
    events.RunCompleted: "completed",
    events.RunFailed: "failed",
    events.RunCancelled: "cancelled",
    events.RunContinued: "continued",
}
ENDED = frozenset(END_STATUSES.values())


class Edited(NamedTuple):
    """Arguments and key that replace those of a call, by a decision or fork in event `seq`; `before`: the old key."""

    args: str
    key: str
    seq: int
    before: str


@dataclass(slots=True)
class RunState:
    """State of a run after its events so far, changed in place; its values are immutable, so a copy is cheap."""

    run_id: RunId
    head: Head = field(default_factory=Head)
    status: Status = "pending"
    request: events.RunRequested | None = None
    position: events.Cause | None = None
    version: str = ""  # of the agent
    versions: tuple[tuple[int, str], ...] = ()  # oldest first, each after the seq of the event that set it
    app: str = ""
    requested_ms: int = 0
    started_ms: int = 0
    at_ms: int = 0
    busy: int = 0  # open steps that do not just wait
    steps: PersistentList[Step] = field(default_factory=PersistentList)  # steps[i] is step i+1 as requested
    seqs: PersistentList[int] = field(default_factory=PersistentList)  # seqs of the events that proposed the steps
    heads: PersistentList[Head] = field(default_factory=PersistentList)  # id and last seq of each entry
    # In the order in which the steps settled, with time and seq.
    outcomes: PersistentMap[int, tuple[int, Settled, int]] = field(default_factory=PersistentMap)
    open: Map[int, OpenStep] = EMPTY
    resolved: Map[int, events.DoubtResolved] = EMPTY  # last human verdict on a step in doubt
    late: Map[int, tuple[events.LateResultRecorded, ...]] = EMPTY  # results after a step was settled or given up
    given_up: Map[int, OpenStep] = EMPTY
    edited: Map[int, Edited] = EMPTY  # arguments and key by which people replaced a call's
    writers: Map[int, tuple[str, ...]] = EMPTY  # all authors of edited arguments
    uses: Map[tuple[str, int], int] = EMPTY  # step by grant and use
    end: events.Terminal | None = None
    pools: tuple[str, ...] = ()  # of its calls; only in rows of finished runs
    unseen: int = 0  # last events that wake the code without a reaction in the log, because it was held
    size_bytes: int = 0  # size of the history's texts
    values: Map[str, str] = EMPTY  # last JSON exposed by the agent, by name; its status is the text without a name
    mail: Mailbox = NO_MAIL
    answers: Map[str, int] = EMPTY  # steps of the first answers by id of the signal
    callbacks: Map[str, int] = EMPTY  # steps of all callbacks by digest of their tokens
    children: int = 0  # number of runs it has started or submitted
    patches: Map[str, int] = EMPTY  # changes in its code at which it took the new branch, with the seq
    retried: Retried = ONCE
    paused: tuple[events.RunPaused, ...] = ()  # in force: its own pause, then the inherited one
    pause_orders: Map[str, LastCommand] = EMPTY  # last requests to pause or resume, by role
    account: BudgetAccount | None = None
    activation: int = 1  # event since which it has always been busy
    notes: Map[str, str] = EMPTY  # digests by id

    def read_as(self, text: str) -> None:
        """Replace the input as the code reads it; an empty text keeps the request's."""
        if text and self.request is not None:
            self.request = replace(self.request, input=text)

    def runs_by(self, version: str, *, seq: int) -> None:
        self.version, self.versions = version, (*self.versions, (seq, version))

    @property
    def says(self) -> str:
        """Last status set by the agent."""
        return self.values.get("", "")

    def expose(self, name: str, text: str) -> None:
        """Set an exposed value; an empty text removes it."""
        if text:
            self.values = self.values.set(name, text)
        elif name in self.values:
            self.values = self.values.delete(name)

    def annotate(self, note_id: str, note: str) -> None:
        self.notes = self.notes.set(note_id, note_digest(note))

    def link(self, head: Head) -> None:
        """Make an entry the head. If no work is in progress after it, the next `activation` begins there."""
        self.head, self.heads = head, self.heads.append(head)
        if not self.busy or self.end is not None:
            self.activation = head.seq + 1

    @property
    def over(self) -> bool:
        return self.status in ENDED

    def copied(self, seq: int) -> bool:
        """True if an event belongs to the history copied from another run: it has no consequences."""
        forked = self.request.forked if self.request else None
        return forked is not None and seq <= forked.seq

    @property
    def asked_ms(self) -> int:
        """Time of the request; `requested_ms` is the time of the first entry."""
        return self.request.asked_ms(self.requested_ms) if self.request else self.requested_ms

    @property
    def copying(self) -> bool:
        """True until a fork has copied its part of another run's history: before, no code runs and no call is sent."""
        return self.copied(self.head.seq) and not self.over

    def fork(
        self, event: events.RunForked, seq: int, at_ms: int, pasts: Mapping[int, tuple[events.Earlier, ...]]
    ) -> None:
        """Go on from the copied history of another run. `pasts` has the attempts made there, by step. Open calls are
        repeated, times move by the delay, reservations are freed."""
        later_ms, self.requested_ms = at_ms - self.at_ms, at_ms
        if self.request is not None and self.request.forked == event.source:  # else a copied event of an earlier fork
            self.request = dataclasses.replace(self.request, forked=dataclasses.replace(event.source, seq=seq - 1))
        self.paused = tuple(pause for pause in self.paused if pause.role != "parent")
        for step, opened in sorted(self.open.items()):
            if not self.is_call(step):
                due_ms = opened.due_ms + later_ms if opened.due_ms else 0
                self.open = self.open.set(step, opened._replace(due_ms=due_ms))
            elif step in self.given_up:  # in doubt, and given up
                self.open = self.open.delete(step)
            else:
                renewed = OpenStep("proposed", opened.seq, policy=opened.policy, past=pasts.get(step, ()))
                self.open = self.open.set(step, renewed)
        for name, key in event.keys.items():
            self.edit(int(name), self.call(int(name)).args, key, seq)
        self.busy = sum(opened.phase not in WAITING for opened in self.open.values())
        self.account = self.account.freed(later_ms) if self.account else None
        edit = (len(self.steps) + 1, event.edit, event.tool, event.actor) if event.edit else NO_EDIT
        self.retried = self.retried._replace(edit=edit, deadline_ms=event.deadline_ms or self.retried.deadline_ms)

    def number(self, event: Step, seq: int) -> int:
        """Add the next step, proposed as event `seq`; return its number."""
        self.steps, self.seqs = self.steps.append(event), self.seqs.append(seq)
        if event.step != len(self.steps):
            raise FoldError(f"run {self.run_id} numbers a step {event.step} as its {len(self.steps)}th")
        return event.step

    def keep(self, step: int, opened: OpenStep, before: OpenStep | None = None) -> None:
        """Set an open step; `before` is its previous value."""
        if before is not None and before.phase in _NO_CALLS and opened.phase != before.phase:
            raise KeyError(step)  # only calls are tried, judged and doubted
        self.busy += (opened.phase not in WAITING) - (before is not None and before.phase not in WAITING)
        self.open = self.open.set(step, opened)

    def settle(self, step: int, outcome: Settled, *, seq: int, at_ms: int) -> None:
        opened = self.open[step]
        if (opened.phase in _NO_CALLS) is (type(outcome) in _OF_CALLS):
            raise KeyError(step)
        self.busy -= opened.phase not in WAITING
        self.open = self.open.delete(step)
        self.outcomes = self.outcomes.add(step, (at_ms, outcome, seq))

    def give_up(self, step: int, *, seq: int) -> None:
        """Close a step that was given up. A call in doubt stays open for people."""
        opened = self.open[step]
        self.given_up = self.given_up.set(step, opened._replace(given_up_at=seq))
        if opened.phase != "doubt":  # a doubt has to be settled all the same
            self.busy -= opened.phase not in WAITING
            self.open = self.open.delete(step)

    @property
    def waits_for_people(self) -> bool:
        return all(opened.phase in ("approval", "doubt", "held") for opened in self.open.values())

    def step_of(self, seq: int) -> int | None:
        """Step that was proposed, or repeated, as event `seq`, or None."""
        if (place := self.seqs.find(seq)) is not None:
            return place + 1
        renewed = next((step for step, redriven in self.retried.redriven.items() if redriven == seq), None)
        return renewed or self.retried.superseded.get(seq)

    def call_id(self, step: int, *, at: int = 0) -> CallId:
        """Id of the latest call of a step, or of the first if the latest came after event `at`."""
        redriven = self.retried.redriven.get(step, 0)
        return call_id(self.run_id, redriven if redriven and not 0 < at < redriven else self.seqs[step - 1])

    def open_at(self, failure: int) -> list[int]:
        """Calls that may have been open at this failure of a run that was retried since."""
        left = (step for first, last in self.retried.left for step in range(first, last + 1))
        calls = {step for step in left if isinstance(self.steps[step - 1], events.CallProposed)}
        return sorted({step for step, redriven in self.retried.redriven.items() if redriven > failure} | calls)

    @property
    def deadline_ms(self) -> int:
        """Time at which the run fails unless it is over; 0: never."""
        if not self.retried.deadline_ms:
            return self.request.deadline_ms if self.request else 0
        return max(0, self.retried.deadline_ms)

    def entry_at(self, seq: int) -> EntryId | None:
        """Id of the entry whose first event is `seq`, or None."""
        place = self.heads.place(seq, key=BY_SEQ)  # the first entry that ends there or later
        begins = self.heads[place - 1].seq + 1 if place else 1
        return self.heads[place].id if place < len(self.heads) and begins == seq else None

    def place_of(self, step: int) -> tuple[EntryId, int, int]:
        """Place of a step's proposal in this history: its entry, the step, and the last retry since."""
        place = self.heads.place(self.seqs[step - 1], key=BY_SEQ)
        # An entry's id covers all before it, so equal places have equal calls and results below.
        return self.heads[place].id if place < len(self.heads) else EntryId(b""), step, self.retried.at

    def is_call(self, step: int) -> bool:
        return isinstance(self.steps[step - 1], events.CallProposed)

    def call(self, step: int) -> events.CallProposed:
        """Call of a step as it would be dispatched: as proposed, or as edited. **Raises** KeyError."""
        call = self.steps[step - 1]
        if not isinstance(call, events.CallProposed):
            raise KeyError(step)
        if edit := self.edited.get(step):
            return dataclasses.replace(call, args=edit.args, key=edit.key)
        return call

    def edit(self, step: int, args: str, key: str, seq: int, *, by: Sequence[str] = ()) -> None:
        # Only the first supporter is the author. The others may agree again: else three people could not decide with a
        # quorum of two.
        by = by[:1]
        self.writers = self.writers.set(step, (*dict.fromkeys((*self.writers_of(step), *by)),))
        self.edited = self.edited.set(step, Edited(args, key, seq, self.call(step).key))

    def writers_of(self, step: int) -> tuple[str, ...]:
        """Authors of arguments in place of those that the code requested."""
        edited, _, _, writer = self.retried.edit
        return self.writers.get(step, (writer,) if step == edited else ())

    def take_edit(self, step: int) -> None:
        # The author of an operator's edit is known only here: the call is proposed after the retry.
        self.writers = self.writers.set(step, self.writers_of(step))
        self.retried = self.retried._replace(edit=NO_EDIT)

    def reworded(self, step: int, call: CallId) -> bool:
        """True if the arguments of a step's call were edited since it had this id: then it is another call."""
        edit, seq = self.edited.get(step), parse_call_id(call)[1]
        if edit is None or edit.key == edit.before or call == self.call_id(step):
            return False
        redriven = (*(at for at, of in self.retried.superseded.items() if of == step), self.retried.redriven[step])
        return edit.seq > min(at for at in redriven if at > seq)

    def answer(self, event: events.SignalAnswered, seq: int) -> None:
        step = self.number(event, seq)
        if event.signal_id not in self.answers:  # its sender may have read an answer that a retry has left behind
            self.answers = self.answers.set(event.signal_id, step)

    def answer_to(self, signal_id: str) -> events.SignalAnswered | None:
        """First answer to a signal, if any."""
        answer = self.steps[self.answers[signal_id] - 1] if signal_id in self.answers else None
        return answer if isinstance(answer, events.SignalAnswered) else None

    def open_calls(self) -> list[int]:
        return [step for step in sorted(self.open) if self.is_call(step)]

    def waits_for(self, step: int) -> str:
        """Id of the open approval of a step; empty if there is none."""
        opened = self.open.get(step)
        if opened is None or opened.question is None:
            return ""
        return approval_id(call_id(self.run_id, opened.seq), opened.question.question)

    def copy(self) -> RunState:
        return RunState(*_fields(self))

    def called_pools(self) -> tuple[str, ...]:
        if self.pools or not self.steps:
            return self.pools
        return _shared(frozenset(step.pool for step in self.steps if isinstance(step, events.CallProposed)))

    def digest(self) -> str:
        """Digest of the content, equal for equal states however they were folded."""
        values = [sorted(v.items()) if isinstance(v, Map) else v for v in _content(self)]
        return blake2b(repr(values).encode(), digest_size=16).hexdigest()


def note_digest(note: str) -> str:
    return blake2b(note.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


_fields = attrgetter(*(spec.name for spec in dataclasses.fields(RunState)))
_content = attrgetter(*(spec.name for spec in dataclasses.fields(RunState) if spec.name != "activation"))
"""Fields without `activation`, which depends on how the events lie in entries."""


@cache
def _shared(pools: frozenset[str]) -> tuple[str, ...]:
    # One tuple for all runs with the same pools: a planner remembers every run that it has seen.
    return tuple(sorted(pools))
