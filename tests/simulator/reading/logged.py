"""Runs, calls and questions as the checker has them, by its own reading of the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulator.reading.budgets import LoggedPurse
from tests.simulator.reading.children import LoggedChildren
from tests.simulator.reading.forks import LoggedFork, forked_from
from tests.simulator.reading.pauses import LoggedPauses
from tests.simulator.reading.values import Datum
from tests.simulator.reading.versions import LoggedVersions
from tests.simulator.reading.waits import LoggedMail

GOES_ON = frozenset({"RunRetried", "CallRenewed", "RunForked"})
"""The events by which a run goes on that has failed, or that others have begun."""

ENDS = {"RunCompleted": "completed", "RunFailed": "failed", "RunCancelled": "cancelled", "RunContinued": "continued"}


@dataclass(slots=True)
class Question:
    """An approval that is waited for, as the log has it. `name` is its id."""

    name: str
    seq: int
    attempt: int
    question: str
    expires_ms: int
    escalates_ms: int
    about: str = ""


@dataclass(slots=True)
class LoggedCall:
    """A call as the log has it. `attempts` were dispatched, `said` are the verdicts of humans by attempt.

    `asked` is the open approval, `permit` the decision in force as (covers, expires_ms), `permits` all of them as
    (token, first attempt, last), `held`: it needs one, since the entry at `held_from` where that was not so from the
    start, `answered`: people gave the result. `ordered` has the times of the dispatches of each attempt, `waited_ms` is
    the longest time that one of them was not answered, `never_sent` one that was settled in the turn of its
    dispatch, or that a pause kept back from then on. `told` is what people have said of a doubt, until the log resolves
    it; `spent` are the attempts before an operator has given it as many anew. `times` is how often the run has asked
    for the same, with this, `cost` what it had cost until then. `how` is the source of its result, as recorded. `left`:
    it was in doubt, and nobody waits for it.
    """

    id: str
    step: int
    tool: str
    effect: str
    key: str
    args: str
    phase: str = "proposed"
    attempt: int = 0
    attempts: set[int] = field(default_factory=set)
    retry_ms: int = 0
    result: str | None = None
    how: str = ""
    failure: str = ""
    said: dict[int, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    asked: Question | None = None
    permit: tuple[int, int] | None = None
    permits: list[tuple[str, int, int]] = field(default_factory=list)
    held: bool = False
    held_from: int = field(default=-1, compare=False)
    answered: bool = False
    back: tuple[int, int] = field(default=(0, 0), compare=False)
    ordered: dict[int, list[int]] = field(default_factory=dict)
    waited_ms: int = 0
    never_sent: int = 0
    told: str = ""
    spent: int = 0
    times: int = 1
    cost: int = field(default=0, compare=False)
    left: bool = False

    @property
    def settled(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.phase in ("completed", "failed", "given_up")

    def permitted(self, decision: str, attempt: int) -> bool:
        """Whether the log has accepted the decision for this attempt."""
        return any(token == decision and first <= attempt <= last for token, first, last in self.permits)

    def undecided(self, attempt: int, at_ms: int) -> Iterator[str]:
        """What waits for a decision is not sent out, and what needs one not without one that holds."""
        if self.asked is not None:
            yield f"undecided: attempt {attempt} of {self.id} is sent out while people are asked"
        elif self.held and (self.permit is None or attempt > self.permit[0] or at_ms >= self.permit[1]):
            yield f"undecided: attempt {attempt} of {self.id} is sent out without a decision that holds"


@dataclass(slots=True)
class LoggedRun:
    """A run as the log has it. `heads` are the entries that count.

    `calls` has what was asked for anew under its step, and what it was before under a number below zero. `ends` are all
    that it had (status, seq and result), `asked` counts its steps, `again` are those whose failure the last retry has
    taken back, `gone` the sleeps that were given up. `before_ms` is the time of the entry before the last one,
    `later_ms` how much later a fork is than what it keeps. A `fork`
    has in `calls` none of those that are in the entries that it keeps of its source. `continues` is the last entry of
    the generation before.
    """

    id: str
    heads: list[bytes] = field(default_factory=list)
    seq: int = 0
    at_ms: int = 0
    status: str = "pending"
    not_before_ms: int = 0
    request: tuple[str, str] = ("", "")
    requester: str = ""
    outlives: bool = False
    calls: dict[int, LoggedCall] = field(default_factory=dict)
    sleeps: dict[int, int] = field(default_factory=dict)
    mail: LoggedMail = field(default_factory=LoggedMail)
    seed: str = ""
    children: LoggedChildren = field(default_factory=LoggedChildren)
    asked: int = 0
    end: Datum | None = None
    order: list[str] = field(default_factory=list)
    ends: list[tuple[str, int, str]] = field(default_factory=list)
    again: frozenset[int] = frozenset()
    gone: dict[int, int] = field(default_factory=dict)
    pauses: LoggedPauses = field(default_factory=LoggedPauses)
    purse: LoggedPurse = field(default_factory=LoggedPurse)
    revisions: LoggedVersions = field(default_factory=LoggedVersions)
    notes: dict[str, str] = field(default_factory=dict)
    before_ms: int = 0
    later_ms: int = 0
    fork: LoggedFork | None = None
    continues: bytes = b""

    @property
    def copying(self) -> bool:
        """Whether all that it has so far was kept of another run."""
        return self.fork is not None and not self.fork.at

    @property
    def head(self) -> bytes:
        """What the next entry has to extend."""
        return self.heads[-1] if self.heads else b""

    @property
    def over(self) -> bool:
        """Whether the run has a terminal event, and was not retried since."""
        return self.end is not None

    def call(self, name: str) -> LoggedCall | None:
        """The call with an id."""
        return next((call for call in self.calls.values() if call.id == name), None)

    def annotate(self, event: Datum) -> list[str]:
        """Somebody has added a note; returns what is wrong with that."""
        twice = event["note_id"] in self.notes
        self.notes[event["note_id"]] = event["note"]
        return [f"note: run {self.id} has the note {event['note_id']} twice"] * twice

    def begin(self, event: Datum) -> None:
        """It is asked for."""
        self.not_before_ms, self.request = event["not_before_ms"], (event["agent"], event["input"])
        self.requester, self.seed, self.outlives = event["requester"], event["seed"], event["outlives"]
        self.purse.request(event)
        self.fork = forked_from(event)
        self.continues = event["continues"]["head"] if event.get("continues") else b""

    def propose(self, event: Datum, cost: int) -> LoggedCall:
        """It asks for a call, and has cost so much until then."""
        step, tool, args = event["step"], event["tool"], event["args"]
        self.purse.asked[tool, args] += 1
        call = LoggedCall(f"{self.id}/{self.seq}", step, tool, event["effect"], event["key"], args)
        call.held, call.times, call.cost = tool.startswith("wipe_"), self.purse.asked[tool, args], cost
        self.calls[step] = call
        return call

    def go_on(self, name: str, event: Datum, at_ms: int) -> Iterator[str]:
        """It has failed and goes on: what is done stays done. What may not be."""
        if name == "RunForked":
            yield from self._forked(event, at_ms)
            return
        if name == "RunRetried":
            yield from self._retried(event, at_ms)
            return
        kept = self.fork.kept if self.fork else {}
        before = self.calls.get(event["step"]) or kept[event["step"]]
        if self.fork and self.fork.opened.pop(before.step, None):
            before.phase = "renewed"
        elif before.phase in ("completed", "left") or (before.phase == "failed" and before.step not in self.again):
            yield f"again: call {before.id} was {before.phase}, and is asked for anew"
        before.asked, before.phase = None, "renewed"
        anew = LoggedCall(f"{self.id}/{self.seq}", before.step, before.tool, before.effect, before.key, before.args)
        anew.held = before.tool.startswith("wipe_")
        if self.calls.get(before.step) is before:
            self.calls[-self.seq] = before
        self.calls[before.step] = anew

    def _retried(self, event: Datum, at_ms: int) -> Iterator[str]:
        if self.status != "failed":
            yield f"terminal: run {self.id} is retried, and was {self.status}"
        self.status, self.end = "running" if "RunStarted" in self.order else "pending", None
        self.again, self.gone, self.sleeps = frozenset(event["again"]), {}, self.sleeps | self.gone
        self.mail.go_on(event["from_step"])
        self.children.go_on(event["from_step"] or self.mail.asked_before + 1, at_ms)
        for step, call in self.calls.items() if event["from_step"] else ():
            if step >= event["from_step"]:
                call.asked, call.phase = None, call.phase if call.settled else "left"

    def _forked(self, event: Datum, at_ms: int) -> Iterator[str]:
        """Its history so far is of another run: of what was open there it has its own from now on."""
        fork, later = self.fork, at_ms - self.before_ms
        if fork is None:
            yield f"copied: run {self.id} is no fork, and is said to be one"
            return
        if not self.copying or not fork.is_it(event):
            own = self.calls
        else:
            own, fork.at = fork.kept, self.seq
        fork.opened = {step: call for step, call in own.items() if step > 0 and not call.settled}
        for step, key in event["keys"].items():
            own[int(step)].key = key
        if fork.opened.keys() - {int(step) for step in event["keys"]}:
            yield f"copied: calls that are open where run {self.id} was forked have no keys of their own"
        self.later_ms += later
        self.sleeps = {step: until_ms + later for step, until_ms in self.sleeps.items()}
        self.mail.fork(later)
        self.children.fork()
        fork.children = set(self.children.known)
        self.pauses.fork(at_ms)
        self.purse.fork()
