"""Histories for the tests of the core: a log of one run that is written as a planner writes it, input by input."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from hypothesis import settings

from refold.core.approval.decision import VERDICTS
from refold.core.events import (
    BudgetReached,
    CallbackCreated,
    CallProposed,
    CallRepeated,
    CallReserved,
    Cause,
    CheckpointReached,
    ChildStarted,
    Entry,
    Event,
    EventPublished,
    Failure,
    NoteRecorded,
    PatchTaken,
    RetryPolicy,
    RunAnnotated,
    RunCompleted,
    RunContinued,
    RunFailed,
    RunMigrated,
    RunSubmitted,
    SignalAnswered,
    SignalSent,
    SleepStarted,
    StatusSet,
    StepGivenUp,
    TaskFailed,
    Terminal,
    Used,
    WaitEnded,
    WaitsPostponed,
    WaitStarted,
)
from refold.core.ids import EntryId, RunId, callback_digest, callback_token, log_key
from refold.core.messages import RunOperation, RunRequest, RunSignal, ToolResult
from refold.core.planning import asking as questions
from refold.core.planning import waiting
from refold.core.planning.budgets import dispatch
from refold.core.planning.copying import copy_of, fork_asked
from refold.core.planning.decide import decide
from refold.core.planning.verdict import (
    Again,
    AppFacts,
    ChildEnded,
    Due,
    Ignore,
    Input,
    Park,
    Refuse,
    Rules,
    Ruling,
    Start,
)
from refold.core.run import chain
from refold.core.run.chain import Head
from refold.core.run.fold import apply, evolve
from refold.core.run.pausing import status_change
from refold.core.run.state import SENT_BACK, RunState
from refold.core.wire import canonical, codec
from tests.core import approvals

RUN = "run-1"
NOW = 1_700_000_000_000
RULES = Rules(redispatch_ms=10_000, redispatch_cap_ms=40_000, app=AppFacts(versions={"deploy": "test"}))
JUDGED = replace(RULES, authority=approvals.authority())
"""The same with a policy that lets `pure` calls out, denies `probed` ones and asks people for the others."""
EFFECTS = ("pure", "keyed", "probed", "once")

Raw = tuple[bytes, bytes]

examples = settings()
"""As many of each property as the profile says (tests/conftest.py)."""


def start(**changes: object) -> Start:
    """A start of the run."""
    request = RunRequest(**{"run_id": RUN, "agent": "deploy", "input": "{}", "requester": "ann", **changes})  # type: ignore[arg-type]
    return Start(request, digest=blake2b(request.input.encode(), digest_size=16).hexdigest(), seed="seed")


def call(
    step: int = 1, effect: str = "keyed", *, attempts: int = 3, window_ms: int = 0, then: str = "raise"
) -> CallProposed:
    """A proposal of a call."""
    retry = RetryPolicy(attempts=attempts, base_ms=1_000, cap_ms=8_000, then=then)
    return CallProposed(step, "push", f'{{"n":{step}}}', f"key-{step}", "default", effect, 30_000, retry, window_ms)


def signal(kind: str, data: str = "null") -> RunSignal:
    """A signal to the run, of who asked for it."""
    return RunSignal(RUN, "signal-1", kind, data, actor="ann")


def told(signal_id: str = "s-1", name: str = "go", data: object = None, actor: str = "bob") -> RunSignal:
    """A signal to whoever waits for it."""
    return RunSignal(RUN, signal_id, "signal", canonical.dumps(data), actor, name=name)


def answer(token: str, data: object = None, *, failure: str = "", key: str = "") -> RunSignal:
    """What is said with the token of a callback."""
    said = canonical.dumps(data)
    return RunSignal(RUN, "", "callback", said, "psp", callback=token, failure=failure, key=key)


def operation(kind: str, data: str = "null") -> RunOperation:
    """What an operator says of the run."""
    return RunOperation(RUN, "operation-1", kind, data, actor="op")


@dataclass
class Log:
    """A run's history as records, and the state that it folds to.

    `tells`: entries say at their end whether the run waits, as those of a planner do.
    """

    run_id: str = RUN
    now: int = NOW
    writer: int = 0
    rules: Rules = RULES
    tells: bool = False
    entries: list[tuple[EntryId, Entry]] = field(default_factory=list)
    records: list[Raw] = field(default_factory=list)
    state: RunState | None = None

    @property
    def live(self) -> RunState:
        """The state, which must be there."""
        assert self.state is not None
        return self.state

    def feed(self, what: Input) -> Ruling:
        """Decides an input and appends what it causes."""
        verdict = decide(self.state, what, self.now, self.rules)
        if isinstance(verdict, list):
            self.append(verdict)
        return verdict

    def append(self, events: list[Event]) -> Raw:
        """Appends an entry and folds it."""
        name, entry, raw = self.write(events)
        self.state = evolve(self.state, entry, name)
        self.entries.append((name, entry))
        self.records.append(raw)
        return raw

    def write(self, events: list[Event], nonce: int = 0) -> tuple[EntryId, Entry, Raw]:
        """An entry on top of the head, not appended."""
        head = self.state.head if self.state else Head()
        if self.tells:
            after = questions.foreseen(self.state or RunState(self.run_id), events, self.now)
            events = events + status_change(self.state, after, events)
        number = nonce or len(self.entries) + 1 + (self.writer << 32)
        entry = Entry(
            run_id=self.run_id,
            seq=head.seq + 1,
            prev=head.id,
            at_ms=self.now,
            cause=Cause("run-requested", 3, len(self.entries)),
            actor="planner-1",
            nonce=number.to_bytes(16),
            events=events,
        )
        name, value = codec.encode_entry(entry)
        return name, entry, (log_key(self.run_id, entry.seq, name), value)

    def propose(self, effect: str = "keyed", *, attempts: int = 3, window_ms: int = 0, then: str = "raise") -> int:
        """Appends a call, with its first dispatch, as the planner does for what an agent asks; returns its step."""
        step = len(self.live.steps) + 1
        asked, held = call(step, effect, attempts=attempts, window_ms=window_ms, then=then), None
        if self.rules.authority:
            seq = self.live.head.seq + 1
            asked, held = questions.propose(self.live, asked, self.rules.authority, self.now, seq=seq, ahead=0)
        # Of some calls their maker says what they may take; those of others are counted from then on.
        most = [] if held or step % 3 else [CallReserved(step, 1, 10, 5)]
        self.append([asked, *most, held or dispatch(asked, 1, self.now, RULES)])
        return step

    def wait(self, name: str = "go", match: str = "", until_ms: int = 0) -> int:
        """Appends a wait, with the signal that it finds, as the planner does; returns its step."""
        step = len(self.live.steps) + 1
        wait = WaitStarted(step, name, match, until_ms)
        signal, failed = waiting.find_kept(self.live, wait, ())
        self.append([wait, *failed, *([WaitEnded(step, signal.signal_id)] if signal else [])])
        return step

    def callback(self, name: str = "paid", schema: str = "", until_ms: int = 0) -> str:
        """Appends a callback; returns its token."""
        step = len(self.live.steps) + 1
        token = callback_token(self.run_id, "seed", step)
        self.append([CallbackCreated(step, name, callback_digest(token), schema, until_ms)])
        return token

    def result(self, step: int = 1, status: str = "completed", *, attempt: int = 1, **changes: object) -> ToolResult:
        """What an executor may answer."""
        name = self.live.call_id(step)
        result = '"done"' if status == "completed" else ""
        failure = None if status == "completed" else Failure("boom", "it broke")
        fields = {"result": result, "failure": failure, **changes}
        return ToolResult(name, self.run_id, step, attempt, status, **fields)  # type: ignore[arg-type]

    def due(self, step: int = 1) -> Due:
        """The input that time makes of an open step, once it has come."""
        return Due(self.run_id, step, self.live.open[step].due_ms)


def started() -> Log:
    """A run that has just started."""
    log = Log()
    log.feed(start())
    return log


def calling(effect: str = "keyed", *, attempts: int = 3, window_ms: int = 0) -> Log:
    """A run whose first step is a call that is with the executors."""
    log = started()
    log.propose(effect, attempts=attempts, window_ms=window_ms)
    return log


def asking(effect: str = "keyed", *, attempts: int = 3, rules: Rules = JUDGED) -> Log:
    """A run whose first step waits for people."""
    log = Log(rules=rules)
    log.feed(start())
    log.propose(effect, attempts=attempts)
    return log


def doubting(effect: str = "once") -> Log:
    """A run whose first step is in doubt."""
    log = calling(effect)
    log.feed(log.result(status="doubt"))
    return log


def read_fold(records: list[Raw]) -> RunState:
    """The state of a run as any reader of the log gets it: raw records in, void ones ignored."""
    state = RunState(RUN)
    for key, value in records:
        judged = chain.read(key, value)
        if isinstance(judged, chain.LogRecord) and chain.extends(state.head, judged.entry):
            apply(state, judged.entry, judged.id)
    return state


def random_input(log: Log, rng: random.Random) -> Input:
    """Anything that may reach a planner about this run: plausible, stale, contradictory or nonsense."""
    state = log.state
    if state is None or rng.random() < 0.04:
        return start(input=rng.choice(["{}", "{}", "[]"]), not_before_ms=rng.choice([0, 0, NOW + 60_000]))
    if state.status == "failed" and rng.random() < 0.6:
        data = {"seq": rng.choice([state.head.seq] * 5 + [1]), "from": rng.choice([0, 0, rng.randint(0, 5)])}
        return operation("retry", json.dumps(data))
    step = _interesting_step(state, rng)
    opened = state.open.get(step)
    if rng.random() < 0.2 or (opened and opened.phase in ("wait", "callback") and rng.random() < 0.5):
        return _random_word(state, rng)
    if rng.random() < (0.3 if state.paused else 0.03):
        says = rng.choice([operation, operation, signal])
        return says(rng.choice(["resume", "resume", "pause"]), rng.choice(['{"reason":"look"}', "7", "{"]))
    if rng.random() < 0.15:
        return Due(RUN, rng.choice([step, step, 0]), opened.due_ms if opened else rng.choice([0, NOW]))
    if opened and opened.question and rng.random() < 0.6:
        verdict = rng.choice(VERDICTS)
        more = {"edit": {"edited": '{"n":7}'}, "answer": {"result": '"instead"'}}.get(verdict, {})
        changes = rng.choice([{}, {}, {}, {"question": "another"}, {"expires": log.now}])
        return approvals.decided(state, step, verdict, now=log.now, changes=changes, **more)
    said = state.resolved.get(step)
    known = opened.attempt if opened else said.attempt if said else 1
    attempt = rng.choice([known, known, known, known, 1, 2, 0])
    if rng.random() < (0.5 if opened and opened.phase == "doubt" else 0.1):
        verdict = rng.choice(["happened", "did_not_happen", "give_up", "perhaps"])
        data = f'{{"step":{step},"attempt":{attempt},"verdict":"{verdict}","result":{rng.randint(0, 1)}}}'  # type: ignore[assignment]
        kind, says = rng.choice(["resolve"] * 20 + ["cancel", "sing"]), rng.choice([operation] * 9 + [signal])
        return says(kind, rng.choice([data] * 5 + ["7", "{"]))
    if (opened and opened.phase == "child" and rng.random() < 0.7) or rng.random() < 0.02:
        failure = rng.choice([None, Failure("boom", "it broke")])
        used = None if failure else Used(7, 5, 1, 2, 1)
        return ChildEnded(RUN, step, "failed" if failure else "completed", "1", failure, used)
    status = rng.choice(["completed", "failed", "broken", "unknown", "doubt", "odd", "unauthorised"])
    refused = Failure(rng.choice([*sorted(SENT_BACK), "unauthorised"]), "not now")
    return ToolResult(
        call_id=rng.choice([state.call_id(step) if state.steps else "x"] * 8 + [f"{RUN}/1", "nonsense"]),
        run_id=RUN,
        step=step,
        attempt=attempt,
        status=status,
        result=rng.choice(['"a"', '"b"']) if status == "completed" else "",
        failure=refused if status == "unauthorised" else rng.choice([None, Failure("boom", "it broke")]),
        retryable=rng.random() < 0.7,
        retry_after_ms=rng.choice([0, 0, 5, -5, 2**63 - 1]),
        late=rng.random() < 0.3,
    )


def _random_word(state: RunState, rng: random.Random) -> RunSignal:
    """A signal, or an answer to a callback: new, said before, or of nobody."""
    if rng.random() < 0.6:
        data = rng.choice([{"n": rng.randint(0, 2)}, 7, "x" * 100_000])
        return told(f"s-{rng.randint(0, 30)}", rng.choice(["go", "go", "stop"]), data)
    token = callback_token(RUN, "seed", rng.randint(1, max(1, len(state.steps))))
    return answer(token, rng.choice([1, "no"]), failure=rng.choice(["", "", "bad"]), key=rng.choice(["", "k"]))


def _interesting_step(state: RunState, rng: random.Random) -> int:
    """Mostly one that is open or that a human has spoken on: there the decisions are."""
    candidates = [*state.open, *state.resolved]
    if candidates and rng.random() < 0.85:
        return rng.choice(candidates)
    return rng.randint(1, max(1, len(state.steps)))


def random_reaction(log: Log, rng: random.Random) -> None:
    """What the agent's code does next, if it does anything."""
    state = log.state
    if state is None or state.over or state.paused or state.status == "pending":
        return
    if rng.random() < 0.2 * (1 + len(state.open)):
        return
    step = len(state.steps) + 1
    draw = rng.random()
    if draw < 0.05 and (waited := sorted(set(state.open) - set(state.given_up))):
        log.append([StepGivenUp(rng.choice(waited))])
    elif draw < 0.66:
        log.propose(
            rng.choice(EFFECTS),
            attempts=rng.randint(1, 3),
            window_ms=rng.choice([0, 50_000]),
            then=rng.choice(["raise", "hold"]),
        )
    elif draw < 0.7:
        started = ChildStarted(step, "worker", "{}", outlives=rng.random() < 0.3)
        others = [
            EventPublished(step, "paid", "{}", ["worker"] * rng.randint(0, 2)),
            SignalSent(step, "r-2", "go", "{}"),
            RunSubmitted(step, "r-3", "worker", "{}"),
        ]
        log.append([rng.choice([started, *others])])
    elif draw < 0.72:
        log.append([PatchTaken(rng.choice(["ask", "answer"]))])
    elif draw < 0.74:
        log.append([rng.choice([RunMigrated(rng.choice(["1", "2"]), "op"), WaitsPostponed(rng.choice([0, step]))])])
    elif draw < 0.8:
        asides: list[Event] = [NoteRecorded(step, "thought", '"hm"'), CheckpointReached(step, "half")]
        asides += [SignalAnswered(step, f"s-{step % 3}", str(step)), StatusSet(str(step), rng.choice(["", "n", "m"]))]
        asides += [StatusSet(f"at {step}"), TaskFailed("Task-1", Failure("ValueError", "no"))]
        asides += [BudgetReached(RUN, "calls", 9, 10, "warn"), CallRepeated(1, 4), RunAnnotated(f"n-{step}", "look")]
        log.append([rng.choice(asides)])
    elif draw < 0.88:
        log.append([SleepStarted(step, log.now + rng.randint(-5, 90_000))])
    elif draw < 0.94:
        until_ms = rng.choice([0, log.now + 40_000])
        log.wait(rng.choice(["go", "go", "stop"]), rng.choice(["", "data.n == 1", "data.n > 0"]), until_ms)
    elif draw < 0.97:
        log.callback("paid", rng.choice(["", '{"type":"integer"}']), rng.choice([0, log.now + 40_000]))
    else:
        ends: list[Event] = [RunCompleted("null"), RunContinued("{}"), RunFailed(Failure("raised", "no"))]
        log.append([rng.choice(ends)])


def random_log(seed: int, inputs: int = 40, *, writer: int = 0) -> Log:
    """A history from a seed, through `decide`. Every writer has nonces of its own, and so ids."""
    rng = random.Random(seed)
    log = Log(writer=writer, rules=rng.choice([RULES, JUDGED]), tells=True)
    for _ in range(inputs):
        log.now += rng.choice([0, 1, 500, 20_000, 60_000])
        verdict = log.feed(random_input(log, rng))
        assert isinstance(verdict, list | Again | Ignore | Park | Refuse)
        random_reaction(log, rng)
    return _fork_of(log, rng) if seed % 5 == 2 else log


def _fork_of(source: Log, rng: random.Random) -> Log:
    """A live fork of a history, cut somewhere before it was over for the first time."""
    ended = (place for place, (_, entry) in enumerate(source.entries) if isinstance(entry.events[-1], Terminal))
    kept = source.entries[: rng.randint(1, max(1, next(ended, len(source.entries))))]
    (name, last), log = kept[-1], Log(writer=source.writer, rules=source.rules, tells=True)
    said = operation("fork", json.dumps({"source": "r-0", "at": last.last_seq, "head": name.hex()}))
    if isinstance(last.events[-1], Terminal):
        return source
    for _, entry in kept:
        copied = replace(copy_of(entry, fork_asked(said), RunId(RUN), log.state), nonce=entry.nonce)
        name, value = codec.encode_entry(copied)
        log.state = evolve(log.state, copied, name)
        log.entries.append((name, copied))
        log.records.append((log_key(log.run_id, copied.seq, name), value))
    log.now = source.now
    assert isinstance(log.feed(said), list)
    for _ in range(10):
        log.feed(random_input(log, rng))
        random_reaction(log, rng)
    return log


BOOM = Failure("boom", "it broke")


def resolve(verdict: str, *, attempt: object = 1, step: object = 1, **more: object) -> str:
    return json.dumps({"step": step, "attempt": attempt, "verdict": verdict, **more})
