"""Forks of a family of runs: today's code continues from a cut, with recorded answers. Answers are found by the request
of a step: the k-th of equal steps gets the k-th recorded answers, after the same delays. The first unanswered step ends
the fork."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self, cast

from pydantic import Field

from refold.client.reading.model import ReadModel, json_text
from refold.core import events
from refold.core.approval import decision
from refold.core.approval.decision import Cast, Decision, Grant, Verdict
from refold.core.approval.policy import Judgement, Policy
from refold.core.errors import UsageError
from refold.core.events import Entry, Event
from refold.core.ids import RunId, child_id, parse_call_id
from refold.core.messages import RunSignal, ToolRequest, ToolResult
from refold.core.planning import asking, commands, pausing
from refold.core.planning.family import FamilyMessage, family_messages, origin_of, pause_above, waits_for
from refold.core.planning.pausing import RequestedAt
from refold.core.planning.verdict import ChildEnded, Due, Input, PauseAbove, Rules, Start
from refold.core.run.building import complete
from refold.core.run.handed import NO_VALUES, Values
from refold.core.run.state import OpenStep, RunState
from refold.engine.planner.runner import ATTEMPT_MS, Runner, WrittenEntry
from refold.engine.planner.settings import Bounds
from refold.lab.forks.authority import ForkAuthority
from refold.lab.forks.record import Cue, RecordedRun, StepKey, input_for, may_answer, result_for, retry_for, step_key
from refold.sdk.app import App

ACTOR = "fork"
"""Actor and nonce prefix of a fork's entries; planners never use it."""
NEAR_MS = 1_000
"""Longest delay of a message within a family: a recorded message within it stands for the fork's."""
_RESTING = ("child", "wait", "sleep", "proposed", "backoff")
"""Phases that time or other runs end."""
LAST = 1 << 62
"""Place of an unrecorded input: after all others of the same time."""


class Act(Protocol):
    """Runner of `pure` calls in this process; `left`: its budget allows one more."""

    @property
    def left(self) -> bool: ...

    def __call__(self, request: ToolRequest, /) -> ToolResult: ...


class PeopleSaid(NamedTuple):
    """Decision of people on a call: verdict, text, and arguments or result as canonical JSON. `event` is the recorded
    decision, if any; it expires `later` milliseconds after the recorded time."""

    verdict: Verdict
    message: str = ""
    content: str = ""
    event: events.ApprovalDecided | None = None
    later: int = 0


@dataclass(frozen=True, slots=True)
class ForkChanges:
    """Changes of a fork. `edits` and `results` are JSON by step, `stubs` by tool, `decisions` by call id."""

    input: str = ""
    edits: Mapping[int, str] = field(default_factory=dict)
    results: Mapping[int, str] = field(default_factory=dict)
    decisions: Mapping[str, PeopleSaid] = field(default_factory=dict)
    stubs: Mapping[str, str] = field(default_factory=dict)
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Environment of a fork: platform, policies, large values, bounds, and the runner of `pure` calls, if allowed."""

    environment: str
    policies: Sequence[Policy] = ()
    values: Values = NO_VALUES
    act: Act | None = None
    bounds: Bounds = field(default_factory=Bounds)


class UnansweredStep(ReadModel):
    """A step without an answer that stopped a fork: a call that would have been sent, or a question to people.

    `phase`: `dispatched` for a call to an executor, `approval` for a question to `approvers`, or another phase."""

    run_id: str
    step: int
    call_id: str
    phase: str
    tool: str = ""
    args: Any = None
    effect: str = ""
    judgement: str = ""
    rule: str = ""
    message: str = ""
    approvers: list[str] = Field(default_factory=list)


class _Answer(NamedTuple):
    """Next input of a step, or of a run (step 0): time, place in the record, content. `body` is None for a timer."""

    due_ms: int
    place: int
    step: int
    body: Cue | PeopleSaid | FamilyMessage | str | None

    @property
    def cue(self) -> Cue | None:
        """Recorded input that this is; None for a timer, a stub, a change, a `pure` run, or a message of the family."""
        return self.body if isinstance(self.body, Cue) else None

    @property
    def is_by_clock(self) -> bool:
        """True if only the clock causes this input: a timer or a recorded time; also for a `pure` run here."""
        return self.body is None or (self.cue is not None and self.cue.kind == "due")


@dataclass(slots=True)
class ForkedRun:
    """Run of the fork: `forked`, as if recorded, beside `source`, the recorded one. `rows`: entries added after the
    `copied` ones. `matched`: recorded step (or None) and delay, by step."""

    forked: RecordedRun
    source: RecordedRun | None
    copied: int = 0
    rows: list[tuple[bytes, bytes]] = field(default_factory=list)
    outside: deque[Cue] = field(default_factory=deque)
    matched: dict[int, tuple[int | None, int]] = field(default_factory=dict)
    cues: dict[int, deque[Cue]] = field(default_factory=dict)
    ahead: dict[int, StepKey] = field(default_factory=dict)

    @property
    def state(self) -> RunState:
        return self.forked.state

    def find(self, key: StepKey, nth: int) -> int | None:
        """Recorded step of a key after `nth` equal ones, if there is one."""
        same = self.source.equals.get(key, ()) if self.source else ()
        return same[nth] if nth < len(same) else None

    def foresee(self, call: events.CallProposed) -> int | None:
        """Recorded step of a call that is judged before it is written."""
        self.ahead[call.step] = key = step_key(call)
        # Equal calls of the same entry are not in `forked` yet.
        before = sum(step < call.step and other == key for step, other in self.ahead.items())
        return self.find(key, len(self.forked.equals.get(key, ())) + before)

    def adopt(self, at_ms: int | None, since: int) -> None:
        """Match new steps with recorded ones; `at_ms` is their time, None for kept steps."""
        for number in range(len(self.matched) + 1, len(self.state.steps) + 1):
            request, later = self.forked.requests[number], 0
            recorded = self.find(request.key, request.nth)
            if self.source is not None and recorded is not None:
                later = at_ms - self.source.requests[recorded].at_ms if at_ms is not None else 0
                self.cues[number] = deque(cue for cue in self.source.cues.get(recorded, ()) if cue.place >= since)
            self.matched[number] = recorded, later
        self.ahead.clear()

    def add_written(self, written: WrittenEntry, since: int) -> None:
        self.rows.append(written.record)
        self.forked.index(LAST, written.entry, written.state)
        self.adopt(written.entry.at_ms, since)

    def left(self, step: int, phase: str) -> bool:
        """True if the matching recorded step had this phase after some entry."""
        recorded = self.matched.get(step, (None, 0))[0]
        return self.source is not None and recorded is not None and phase in self.source.phases[recorded]

    def waits_still(self, step: int) -> bool:
        """True if the recorded run is not over, and waits in the matching step."""
        state = self.source.state if self.source else None
        return state is not None and not state.over and self.matched[step][0] in state.open

    def step_of(self, recorded: int) -> int:
        return next((step for step, (source, _) in self.matched.items() if source == recorded), 0)


class Fork:
    """Family of recorded runs, cut after the last entry of `run` that ends at or before `at`. **Raises** UsageError for
    a change of a kept step, or of an unknown one."""

    def __init__(
        self,
        app: App,
        family: Mapping[RunId, RecordedRun],
        run: RunId,
        at: int,
        changes: ForkChanges,
        around: Surroundings,
    ) -> None:
        self.app, self.root, self.changes, self.around = app, run, changes, around
        self.family, source = family, family[run]
        at = max(at, _forked_until(source))
        self.since = next((place for place, entry, _ in source.entries if entry.last_seq > at), LAST)
        self.now_ms = 0
        self.answered: Counter[str] = Counter()
        self.used: set[int | str] = set()  # of the changes: results by step, decisions by call
        self.lines: dict[RunId, ForkedRun] = {}
        self.unanswered: list[UnansweredStep] = []
        self._messages: list[_Answer] = []
        # Inputs that a run ignored in its present state: given again, they would loop forever.
        self._without_effect: set[tuple[object, ...]] = set()
        self._written = 0
        doubt = next((recorded.doubt for recorded in family.values() if recorded.doubt), None)
        self._authority = ForkAuthority(app, around.environment, around.policies, changes.policy, self._recall, doubt)
        facts = replace(app.facts(), windows=())  # the use of windows by other runs is unknown here
        edits: dict[tuple[str, int], str] = {(run, step): args for step, args in changes.edits.items()}
        rules = Rules(app=facts, authority=self._authority)
        self._runner = Runner(app, rules, self._state_of, bounds=around.bounds, values=around.values, edits=edits)
        self.rules = self._runner.rules
        for recorded in family.values():
            self._copy_prefix(recorded)
        self._check_changes(source)

    # Where it begins

    def _copy_prefix(self, source: RecordedRun) -> None:
        # A family is cut at one place of the log, so that its runs agree on the messages between them.
        prefix = [row for row in source.entries if row[0] < self.since]
        if not prefix:
            return
        line = self._add_run(source.run_id, source, copied=len(prefix))
        for row in prefix:
            line.forked.add(*row)
        line.adopt(None, self.since)
        self.now_ms = max(self.now_ms, line.state.at_ms)

    def _add_run(self, run: RunId, source: RecordedRun | None, *, copied: int = 0) -> ForkedRun:
        line = self.lines[run] = ForkedRun(RecordedRun.empty(run), source, copied)
        if source is not None:
            # Messages of a parent that is in the fork come from the fork, not from the record.
            cues = [*source.outside, *(source.kin if run == self.root else ())]
            line.outside.extend(sorted((cue for cue in cues if cue.place >= self.since), key=lambda cue: cue.place))
        return line

    def _check_changes(self, source: RecordedRun) -> None:
        line = self.lines.get(self.root)
        state = line.state if line else RunState(self.root)
        if self.changes.input and line is not None:
            raise UsageError("the run has its input from its first entry on", hint="fork it at 0: --at 0")
        for step in self.changes.edits.keys() | self.changes.results.keys():
            seq = source.state.seqs[step - 1] if step <= len(state.steps) else 0
            if step in self.changes.edits and seq:
                raise UsageError(f"step {step} was asked for before the cut", hint=f"fork at {seq - 1} or before")
            if step in state.outcomes:
                hint = f"fork at {state.outcomes[step][2] - 1} or before"
                raise UsageError(f"step {step} has its outcome before the cut", hint=hint)
        self._check_decisions()

    def _check_decisions(self) -> None:
        for call in self.changes.decisions:
            run, at = parse_call_id(call)
            target = self.lines.get(run)
            if target and (was := target.state.step_of(at)) and was not in target.state.open:
                raise UsageError(f"{call} was over before the cut", hint=f"fork at {at} or before")

    def run(self) -> Self:
        """Continue until all runs are over, wait as the recorded ones do, or a request has no answer. **Raises**
        StandstillError if the code does not follow its history."""
        self._send_copied()
        try:
            if self.root not in self.lines:
                self._begin_run(self.family[self.root])
            else:
                self._replay_kept(self.lines[self.root])
            while not self.unanswered:
                if (due := self._next_input()) is not None:
                    self._apply_answer(*due)
                elif (halted := self._halted_run()) is not None:  # nothing else gives its code a turn
                    self._write_entry(halted, [])
                else:
                    break
        finally:
            self._runner.forget_all()
        if self.family[self.root].state.over and not (self.unanswered or self.lines[self.root].state.over):
            self.unanswered = self._open_calls()
        return self

    def _open_calls(self) -> list[UnansweredStep]:
        rows = ((line, *row) for line in self.lines.values() for row in sorted(line.state.open.items()))
        return [self._unanswered_step(*row) for row in rows if row[2].phase not in _RESTING]

    def _send_copied(self) -> None:
        for source in self.family.values():
            for place, entry, _ in source.entries:
                if place < self.since:
                    self._send_messages(self.lines[source.run_id], entry, entry.at_ms, copied=True)

    def _begin_run(self, source: RecordedRun) -> None:
        (_, first, _), draft = source.entries[0], self.changes.policy
        line, begun = self._add_run(self.root, source), list[Event]()
        for event in first.events:
            if isinstance(event, events.RunRequested):
                policy = draft.digest if draft else event.policy
                begun.append(replace(event, input=self.changes.input or event.input, policy=policy))
            elif isinstance(event, events.RunStarted):
                again = self.rules.app.start(source.request.agent)
                again = replace(again, input="" if self.changes.input else event.input)
                begun.append(again if event.version else event)
            elif isinstance(event, events.RunPaused):
                begun.append(event)
        self.now_ms = first.at_ms
        self._write_entry(line, begun, halt=first.held)

    def _replay_kept(self, line: ForkedRun) -> None:
        """Replay the history with today's code, after a migration if the version differs."""
        state = line.state
        if state.over or state.request is None or state.status == "pending":
            return
        name = state.request.agent
        own, newest = self.app.agent_of(name, state.version), self.app.agents.get(name)
        if newest and state.version and (own is None or own.needs(state.version)):
            self._write_entry(line, [events.RunMigrated(newest.version, ACTOR, self.app.manifest(name))], halt=True)
        if not state.unseen and not state.paused and not state.mail.behind:
            self._runner.react(line.state, [], self.now_ms, verify=True)

    def _halted_run(self) -> ForkedRun | None:
        """A run whose code was halted in the record, and was not tried since."""
        for line in self.lines.values():
            state, tried = line.state, (line.state.run_id, line.state.head.seq)
            if state.unseen and not (state.over or state.paused) and tried not in self._without_effect:
                self._without_effect.add(tried)
                return line
        return None

    # Next inputs

    def _next_input(self) -> tuple[ForkedRun, _Answer] | None:
        """Input that is due first; unanswered steps go to `unanswered`."""
        due = [(line, answer) for line in self.lines.values() for answer in self._answers_of_run(line)]
        due += [(self.lines[self.root], message) for message in self._messages]
        if self.unanswered or not due:
            return None
        # By time and place alone: contents have no order.
        line, answer = min(due, key=lambda pair: pair[1][:2])
        if answer.cue is None or answer.cue.at_ms < answer.due_ms:  # else its planner has taken it before the deadline
            return self._overdue_run(max(answer.due_ms, self.now_ms)) or (line, answer)
        return line, answer

    def _overdue_run(self, now: int) -> tuple[ForkedRun, _Answer] | None:
        for line in self.lines.values():
            state = line.state
            if not (state.over or state.paused) and 0 < state.deadline_ms < now:
                return line, _Answer(state.deadline_ms, LAST, 0, None)
        return None

    def _answers_of_run(self, line: ForkedRun) -> Iterator[_Answer]:
        if line.outside:
            cue = line.outside[0]
            yield _Answer(cue.at_ms, cue.place, 0, cue)
        if line.state.over:
            return
        for step, opened in sorted(line.state.open.items()):
            answer = self._next_answer(line, step, opened)
            if answer is not None and self._is_heeded(line, opened, answer):
                yield answer
            elif not (line.state.paused or opened.phase in _RESTING or line.left(step, opened.phase)):
                self.unanswered.append(self._unanswered_step(line, step, opened))

    def _next_answer(self, line: ForkedRun, step: int, opened: OpenStep) -> _Answer | None:
        """Next input of an open step: changed, recorded, stubbed, of a `pure` run or a timer; None without one."""
        later, run = line.matched[step][1], line.state.run_id
        if opened.phase == "child" and self._source_of(child_id(run, step)) is not None:
            return None
        cue = next((cue for cue in line.cues.get(step, ()) if may_answer(cue, opened)), None)
        due, place = (cue.at_ms + later, cue.place) if cue else (self.now_ms, LAST)
        if (override := self._changed_answer(line.state, step, opened)) is not None:
            return _Answer(due, place, step, override)
        if cue is not None:
            return _Answer(max(due, opened.due_ms) if cue.kind == "due" else due, place, step, cue)
        return self._substitute(line, step) if opened.phase == "dispatched" else self._timer(line, step, opened)

    def _timer(self, line: ForkedRun, step: int, opened: OpenStep) -> _Answer | None:
        if opened.phase not in ("sleep", "wait", "callback", "backoff") or opened.due_ms <= 0:
            return None
        # Other runs may have ended a step that the record left open; only time ends a backoff.
        over = line.waits_still(step) if opened.phase == "backoff" else line.left(step, opened.phase)
        return None if over else _Answer(opened.due_ms, LAST, step, None)

    def _is_heeded(self, line: ForkedRun, opened: OpenStep, answer: _Answer) -> bool:
        if answer.is_by_clock and line.state.paused and opened.phase != "dispatched":
            return False  # time does nothing to it
        return answer.cue is not None or _attempt_of(line, answer.step) not in self._without_effect

    def _changed_answer(self, state: RunState, step: int, opened: OpenStep) -> PeopleSaid | str | None:
        if opened.question is not None:
            return self.changes.decisions.get(state.call_id(step))
        of_root = opened.phase == "dispatched" and state.run_id == self.root
        return self.changes.results.get(step) if of_root else None

    def _substitute(self, line: ForkedRun, step: int) -> _Answer | None:
        """Answer to an unrecorded call: a stub, or a `pure` run in this process."""
        if line.left(step, "dispatched") and not line.waits_still(step):
            return None
        tool = line.state.call(step).tool
        if tool in self.changes.stubs:
            return _Answer(self.now_ms + ATTEMPT_MS, LAST, step, self.changes.stubs[tool])
        # Today's declaration and the recorded one must both be `pure`: either alone could let an effect happen.
        declared = self.app.tools[tool].facts.effect if tool in self.app.tools else ""
        if self.around.act is not None and self.around.act.left and declared == line.state.call(step).effect == "pure":
            return _Answer(self.now_ms + ATTEMPT_MS, LAST, step, None)
        return None

    def _unanswered_step(self, line: ForkedRun, step: int, opened: OpenStep) -> UnansweredStep:
        state, authority = line.state, self.rules.authority
        place = {"run_id": state.run_id, "step": step, "call_id": state.call_id(step), "phase": opened.phase}
        if not state.is_call(step) or authority is None:
            return UnansweredStep(**place)
        call = state.call(step)
        judgement = authority.judge(state, call, opened.policy)
        return UnansweredStep(
            **place,
            tool=call.tool,
            args=json_text(call.args),
            effect=call.effect,
            judgement=judgement.outcome,
            rule=judgement.rule,
            message=judgement.message,
            approvers=judgement.requirement.approvers if judgement.requirement else [],
        )

    # Effects of an input

    def _apply_answer(self, line: ForkedRun, answer: _Answer) -> None:
        self.now_ms = max(self.now_ms, answer.due_ms)
        (_, _, step, body), cue = answer, answer.cue
        if isinstance(body, FamilyMessage):
            self._messages.remove(answer)
            self._receive_message(body)
            return
        self._follow_judgements(line, cue)
        if step == 0:
            verdict = self._events_of_run_input(line, cue)
        else:
            queue = line.cues.get(step)
            while cue is not None and queue and queue.popleft() is not cue:
                continue
            verdict = self._events_of_answer(line, answer)
        if verdict is not None:
            self._write_entry(line, verdict, halt=cue is not None and cue.stalled)
        elif cue is None and step:  # time, or a stub, that the run does not heed as it is now
            self._without_effect.add(_attempt_of(line, step))

    def _follow_judgements(self, line: ForkedRun, cue: Cue | None) -> None:
        judged = {line.step_of(number): judged for number, judged in cue.judged.items()} if cue else {}
        self._authority.follow(judged, asks_nobody=cue is not None and cue.asks_nobody)

    def _events_of_run_input(self, line: ForkedRun, cue: Cue | None) -> list[Event] | None:
        if cue is None:  # its deadline
            return self._decide(line, Due(line.state.run_id, 0, 0))
        line.outside.popleft()
        state, event = line.state, cue.event
        if isinstance(event, events.RunRetried):
            self._runner.forget(state.run_id)
            return self._decide(line, retry_for(state, event))
        if isinstance(event, events.LateResultRecorded):
            step = line.step_of(event.step)
            return self._decide(line, result_for(state, step, cue, at_most=event.attempt)) if step else None
        return None if state.over else self._events_from_outside(line, cue)

    def _decide(self, line: ForkedRun, message: Input, sent: RequestedAt | None = None) -> list[Event] | None:
        ruling = self._runner.decide(line.state, message, self.now_ms, sent=sent)
        return ruling if isinstance(ruling, list) else None

    def _events_of_answer(self, line: ForkedRun, answer: _Answer) -> list[Event] | None:
        state, step, body = line.state, answer.step, answer.body
        opened = state.open[step]
        if answer.cue is not None:
            self.answered["record"] += 1
            return self._apply_recorded(line, step, answer.cue)
        if isinstance(body, PeopleSaid):
            self.answered["decided"] += 1
            self.used.add(state.call_id(step))
            return self._events_of_decision(line, step, body)
        if isinstance(body, str):
            own = step in self.changes.results and state.run_id == self.root
            self.answered["given" if own else "stub"] += 1
            self.used |= {step} if own else set()
            done = ToolResult(state.call_id(step), state.run_id, step, opened.attempt, "completed", body)
            return self._decide(line, done)
        if opened.phase == "dispatched":
            assert self.around.act is not None, "only then nothing else answers it"
            self.answered["pure"] += 1
            order = commands.request(state, step, opened.attempt, issued=0, at_ms=self.now_ms).message
            assert isinstance(order, ToolRequest), "it is the request of a call"
            return self._decide(line, self.around.act(complete(state, order)))
        return self._decide(line, Due(state.run_id, step, opened.due_ms))

    def _apply_recorded(self, line: ForkedRun, step: int, cue: Cue) -> list[Event] | None:
        """Events that a recorded input causes by today's rules; None if it causes none."""
        state, event, done = line.state, cue.event, cue.of(events.CallCompleted)
        if isinstance(event, events.ApprovalDecided) and cue.kind == "decided":
            content, verdict = event.args or (done.result if done else ""), cast(Verdict, event.verdict)
            answer = PeopleSaid(verdict, event.message, content, event, self.now_ms - cue.at_ms)
            return self._events_of_decision(line, step, answer)
        if isinstance(event, events.ApprovalDecided) and cue.kind == "reopened":
            return asking.reopened(state, step, self.now_ms, self.rules, why=event.message)
        if isinstance(event, events.CallbackCompleted | events.CallbackFailed):
            return [replace(event, step=step)]
        return self._decide(line, input_for(state, step, cue))

    def _events_of_decision(self, line: ForkedRun, step: int, answer: PeopleSaid) -> list[Event]:
        """Events of a decision, as `decide` derives them. **Raises** UsageError if it contradicts the question."""
        state, token = line.state, answer.event.token if answer.event else ""
        final = _decision_of_people(state, step, answer, self.now_ms)
        if answer.event is None and (why := asking.contradiction(state, step, final)):
            raise UsageError(f"{answer.verdict} for {state.call_id(step)}: {why}", hint="approve or reject")
        verdict = asking.accepted(state, step, final, token, now=self.now_ms, rules=self.rules)
        verdict = pausing.keep_back(verdict) if state.paused else verdict
        if any(isinstance(event, events.CallDoubted) for event in verdict):
            after = asking.foreseen(state, verdict, self.now_ms)
            verdict = verdict + asking.ask_what_came(after, step, self.now_ms, self.rules)
        return verdict

    def _events_from_outside(self, line: ForkedRun, cue: Cue) -> list[Event] | None:
        state, event = line.state, cue.event
        if isinstance(event, events.RunStarted):
            return self._decide(line, Due(state.run_id, 0, 0))
        if isinstance(event, events.SignalReceived):
            return self._events_of_signal(line, cue, event)
        if isinstance(event, events.RunUnpaused):
            return pausing.go_on(state, event, self.now_ms, self.rules) if state.paused else None
        if isinstance(event, events.RunMigrated) and self._is_migration(state, event):
            self._runner.forget(state.run_id)
            return [event]
        if isinstance(event, events.RunPaused | events.RunAnnotated | events.RunCancelled | events.RunFailed):
            return [event]
        return [] if state.unseen else None  # the code was held, and had its turn here

    def _events_of_signal(self, line: ForkedRun, cue: Cue, event: events.SignalReceived) -> list[Event] | None:
        run, sent_ms = line.state.run_id, event.sent_ms or (0 if cue.of(events.WaitEnded) else cue.at_ms)
        signal = RunSignal(run, event.signal_id, "signal", event.data, event.actor, name=event.name)
        return self._decide(line, signal, RequestedAt(sent_ms))

    def _is_migration(self, state: RunState, event: events.RunMigrated) -> bool:
        """True for an operator's migration to a version that this app has."""
        agent = self.app.agent_of(state.request.agent, event.version) if state.request and event.actor else None
        return agent is not None and not agent.needs(event.version)

    # Other runs of the family

    def _send_messages(self, line: ForkedRun, entry: Entry, now: int, *, copied: bool = False) -> None:
        for message in family_messages(line.state, entry):
            if not (copied and self._is_delivered(message)):
                self._messages.append(_Answer(*self._due_of_message(line, message, now), 0, message))

    def _is_delivered(self, message: FamilyMessage) -> bool:
        """True if another run's history has the effect of a kept entry already, or needs none."""
        if isinstance(message, Start):
            return message.request.run_id in self.lines
        line = self.lines.get(message.run_id)
        if line is None or line.state.over:
            return True
        return isinstance(message, ChildEnded) and message.step not in line.state.open

    def _due_of_message(self, line: ForkedRun, message: FamilyMessage, now: int) -> tuple[int, int]:
        if isinstance(message, Start):
            return self._due_of_start(line, message.request.run_id, now)
        other = self.lines.get(message.run_id)
        if other is None or line.source is None:
            return now, LAST
        if isinstance(message, ChildEnded):
            cue = next((cue for cue in other.cues.get(message.step, ()) if cue.kind == "child"), None)
            return (now + max(0, cue.at_ms - line.source.state.at_ms), cue.place) if cue else (now, LAST)
        cue = self._nearest_message(other, now)
        return (cue.at_ms, cue.place) if cue else (now, LAST)

    def _nearest_message(self, line: ForkedRun, now: int) -> Cue | None:
        kin = line.source.kin if line.source else []
        return next((cue for cue in kin if cue.place >= self.since and 0 <= cue.at_ms - now < NEAR_MS), None)

    def _due_of_start(self, line: ForkedRun, run: RunId, now: int) -> tuple[int, int]:
        source = self._source_of(run)
        if source is None or line.source is None:
            return now, LAST
        place, first, _ = source.entries[0]
        return now + first.at_ms - line.source.requests[_started_in(source.run_id)].at_ms, place

    def _source_of(self, run: RunId) -> RecordedRun | None:
        """Recorded child that a child in the fork repeats."""
        above, _, last = run.rpartition(".")
        parent = self.lines.get(RunId(above))
        step = parent.matched.get(_started_in(run), (None, 0))[0] if parent else None
        if parent is None or parent.source is None or step is None:
            return None
        # Child ids contain the parent's step, which differs in the record: translate it.
        return self.family.get(RunId(f"{parent.source.run_id}.{step}{last.removeprefix(str(_started_in(run)))}"))

    def _receive_message(self, message: FamilyMessage) -> None:
        if isinstance(message, Start):
            self._start_child(message)
            return
        line = self.lines.get(message.run_id)
        if line is None:
            return
        if isinstance(message, PauseAbove):
            above, origin = self.lines[message.parent], origin_of(line.state)
            message = replace(message, pause=pause_above(above.state, origin) if origin else None)
        if (verdict := self._decide(line, message)) is not None:
            self._write_entry(line, verdict)

    def _start_child(self, start: Start) -> None:
        run, origin = start.request.run_id, start.origin
        assert origin is not None, "a run that another starts has an origin"
        parent = self.lines[origin.parent]
        source = self._source_of(run)
        crossed = source is not None and parent.state.at_ms == self.now_ms  # in one turn, after a take-over
        if run in self.lines or not (crossed or waits_for(parent.state, origin)):
            return
        if source is None and parent.matched[_started_in(run)][0] is not None:
            return  # its history is gone; its parent's has the end, if it is awaited
        seed = source.request.seed if source else f"{self.family[self.root].request.seed}/{run}"
        line = self._add_run(run, source)
        started = self._decide(line, replace(start, seed=seed, pause=pause_above(parent.state, origin)))
        assert started is not None, "a run that is not there begins"
        self._write_entry(line, started)

    def _state_of(self, run: RunId) -> RunState | None:
        line = self.lines.get(run)
        return line.state if line else None

    def _recall(self, state: RunState, call: events.CallProposed) -> Judgement | None:
        line = self.lines.get(state.run_id)
        if line is None or line.source is None:
            return None
        recorded = line.matched[call.step][0] if call.step in line.matched else line.foresee(call)
        return line.source.requests[recorded].judgement if recorded else None

    # Writing

    def _write_entry(self, line: ForkedRun, verdict: list[Event], *, halt: bool = False) -> None:
        self._written += 1
        by = ACTOR, ACTOR.encode() + self._written.to_bytes(12, "big")
        if (written := self._runner.take(line.state, verdict, self.now_ms, by=by, halt=halt)) is not None:
            line.add_written(written, self.since)
            self._send_messages(line, written.entry, written.entry.at_ms)


def _forked_until(source: RecordedRun) -> int:
    # A live fork copied these events from its source: its code never replayed them under this run's name.
    forks = (entry for _, entry, _ in source.entries for event in entry.events if isinstance(event, events.RunForked))
    return max((entry.last_seq for entry in forks), default=0)


def _attempt_of(line: ForkedRun, step: int) -> tuple[object, ...]:
    return line.state.run_id, step, *line.state.open[step][:4]


def _started_in(run: RunId) -> int:
    return int(run.rpartition(".")[2].partition("_")[0])


def _decision_of_people(state: RunState, step: int, vote: PeopleSaid, now: int) -> Decision:
    request, event = asking.question_of(state, state.call(step), state.open[step]), vote.event
    if vote.verdict == "edit" and request.args == vote.content:  # others are asked about an edit, and agree to it here
        vote = vote._replace(verdict="approve", content="")
    content: dict[str, Any] = {"edited" if vote.verdict in ("edit", "amend") else "result": vote.content}
    votes = tuple(Cast(actor, "*", ACTOR, "", now) for actor in (event.actors if event else [ACTOR]))
    final = decision.build(request, vote.verdict, issued_ms=now, nonce="", votes=votes, message=vote.message, **content)
    if event is None:
        return final
    grant = Grant(event.grant, decision.RUN, 0, 0, event.use) if event.grant else None
    return replace(final, covers=event.covers, expires=event.expires_ms + vote.later, grant=grant)
