"""Agent code in the planner, run as far as its history allows. A coroutine is a cache of its run's history: dropping
one is always safe. An error along accepted history is a `Stall` and ends nothing; one beyond it is the agent's
failure."""

from __future__ import annotations

import signal
import traceback
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from refold.core import events
from refold.core.approval.question import in_context
from refold.core.errors import BlobError, MalformedError, NonDeterminismError, RefoldError, UsageError, text_of
from refold.core.events import Event, RunMigrated
from refold.core.ids import RunId, depth_of
from refold.core.messages import RunOperation
from refold.core.planning import asking, budgets, waiting
from refold.core.planning.budgets import REPEATED, Attempted, Reservation, dispatch
from refold.core.planning.verdict import Ignore, Refuse, Rules, Ruling
from refold.core.run.account import COUNTED_MOST, Amount, Reserve, call_digest
from refold.core.run.fold import WAKING, wakes
from refold.core.run.handed import NO_VALUES, Handing, Lacks, Values, lacking, pointed
from refold.core.run.handed import whole as whole_value
from refold.core.run.intents import (
    LABEL_CHARS,
    AnswerSignal,
    Call,
    Continuation,
    GiveUp,
    Intent,
    PublishEvent,
    SendSignal,
    StartRun,
    SubmitRun,
)
from refold.core.run.replay import Moment, Raised, Returned, Wanted, replay
from refold.core.run.state import RunState, Settled
from refold.core.wire import canonical
from refold.core.wire.canonical import idempotency_key, utf8_bytes
from refold.engine.planner.agents.stalls import HELD_UP, LiveCode, LiveRoom, Stall
from refold.engine.planner.settings import Bounds
from refold.engine.runtime.lanes import Journal
from refold.engine.runtime.watchdog import STACK, Driven, HeldUp, Mark
from refold.sdk.agent import AgentDef
from refold.sdk.app import App
from refold.sdk.determinism import watch
from refold.sdk.execution import Execution
from refold.sdk.frames import failure_of, stack_of
from refold.sdk.rehearsal import rehearse
from refold.sdk.source import spoken

MIGRATE = "migrate"


def migrated(app: App, state: RunState, operation: RunOperation, values: Values = NO_VALUES) -> Ruling:
    """Judge an operator's order to continue a run with another version."""
    data = _migration_in(operation)
    if isinstance(data, Refuse):
        return data
    if state.over:
        return Ignore("the run is over")
    if state.request is None or state.status == "pending":
        return Refuse("conflict", f"run {state.run_id} has not begun: it will with the newest version")
    to, name = data["to"], state.request.agent
    agent = app.versions(name).get(to)
    if agent is not None and agent.version == state.version:
        return Ignore("the run is of this version")
    if refused := _overruled(state, data, to):
        return refused
    if agent is None:
        versions = ", ".join(app.versions(name)) or "none"
        return Refuse("unknown_version", f"{app.name} has no version {to} of agent {name}; there is {versions}")
    try:
        rehearse(app, agent, state, values)
    except BaseException as error:  # noqa: BLE001 - the boundary to agent code, which is only tried here
        return Refuse("conflict", f"version {to} does not go with run {state.run_id}: {text_of(error)}")
    return [RunMigrated(agent.version, operation.actor, app.manifest(name, to))]


def _migration_in(operation: RunOperation) -> dict[str, Any] | Refuse:
    try:
        data = canonical.parse(operation.data)
    except MalformedError as error:
        return Refuse("malformed", str(error))
    data = data if isinstance(data, dict) else {}
    to, since = data.get("to"), data.get("from")
    if isinstance(to, str) and isinstance(since, str) and to:
        return data
    return Refuse("malformed", "migrate needs from and to, the versions that the run has and is to have")


def _overruled(state: RunState, data: dict[str, Any], to: str) -> Ruling | None:
    """Ruling on an order about a version that the run no longer has; None: it still has it."""
    # An order may arrive twice, and versions may alternate: by names alone an overruled order would be applied again.
    # So `seq` names the event that gave the run the version `from`.
    for (seq, _), (_, after) in pairwise(state.versions):
        if seq == data.get("seq"):
            done = spoken(after)[0] == to
            return Ignore("that is done") if done else Refuse("conflict", f"run {state.run_id} was handed to {after}")
    if data["from"] not in (state.version, spoken(state.version)[0]):
        return Refuse("conflict", f"run {state.run_id} is of version {state.version}, and not of {data['from']}")
    return None


MOST_DENIED = 1_000
"""Most denied calls in one entry: code that repeats them for ever would never yield."""

MOST_UNHEARD = 20
"""Most failed tasks, not awaited by a run's code, that are recorded."""

_Block = events.CallFailed | events.ApprovalRequested | None
"""Verdict of a policy that blocks a call."""

PASSING = (MemoryError, OSError, ImportError, RecursionError, BlobError)
"""Errors that may be the machine's and not the code's: the run is tried again later."""


@dataclass(slots=True)
class _Frontier:
    """Requests of a run's code beyond its history, after event `seq`. `requested` are new steps without an outcome,
    `closed` those settled or given up, `offers` waits for signals, `added` the resulting events."""

    execution: Execution
    turns: deque[Wanted]
    seq: int
    ahead: int
    requested: set[int]
    closed: set[int]
    offers: Offers
    denied: int = 0
    started: int = 0
    reservation: Reservation | None = None
    added: list[Event] = field(default_factory=list)

    def deny(self, calls: list[events.CallFailed]) -> None:
        """Settle denied calls, once all that was requested with them is proposed. **Raises** RefoldError at a limit."""
        self.turns.extend(self.execution.settle(event.step, event) for event in calls)
        self.denied += len(calls)
        if self.denied > MOST_DENIED:
            message = f"a policy has denied {MOST_DENIED:,} calls without the agent waiting for anything"
            raise RefoldError(message, code="denied", hint="let it give up, or sleep between its tries")

    def settle(self, step: int, outcome: Settled) -> None:
        self.closed.add(step)
        self.turns.append(self.execution.settle(step, outcome))


class WaitsForNothingError(RefoldError, code="waits_for_nothing"):
    """The code of a run that no event can wake."""


class _RefusedInput(Exception):  # noqa: N818 - not an error: the agent refuses its input
    pass


class Agents:
    """Agent code of the runs of one lane."""

    def __init__(
        self,
        app: App,
        rules: Rules,
        environment: str,
        *,
        budget: Bounds | None = None,
        live: LiveCode | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._journal = journal or Journal()
        self._app, self._rules, self._environment = app, rules, environment
        self._budget = budget or Bounds()
        self._live = LiveCode(LiveRoom(self._budget.live_bytes), Mark()) if live is None else live
        self._mark = self._live.mark

    def forget(self, run: RunId) -> None:
        self._live.drop(run)

    def forget_all(self) -> None:
        for run in self._live:
            self._live.drop(run)

    def code_of(self, state: RunState) -> str:
        """Identity of the code that would run here."""
        return self._code(self._agent(state))

    def _code(self, agent: AgentDef | None) -> str:
        try:
            return "/".join((agent.code, self._app.version, *agent.foundation)) if agent else ""
        except BaseException:  # noqa: BLE001 - unreadable code: it differs from any code that ran before
            return "unreadable"

    def migrate(self, state: RunState, operation: RunOperation, values: Values = NO_VALUES) -> Ruling:
        with self._mark.on(Driven(state.run_id, state.version, self.code_of(state))):
            ruling = migrated(self._app, state, operation, values)
        if isinstance(ruling, list):
            self.forget(state.run_id)
        return ruling

    def react(
        self, state: RunState, fresh: list[Event], now: int, *, values: Values = NO_VALUES, verify: bool = False
    ) -> list[Event] | Stall | Lacks:
        """Events that the agent's code adds after the `fresh` ones; `verify` runs it even if nothing wakes it."""
        if state.status == "pending" or state.over or state.request is None:
            return []
        unseen = state.unseen + wakes(fresh)
        if not unseen and not verify and not state.mail.behind:
            return []
        agent = self._agent_or_stall(state, state.request.agent)
        if isinstance(agent, Stall):
            return agent
        driven = Driven(state.run_id, state.version, self._code(agent), ends=True)
        reaction: list[Event] | Stall | Lacks = []
        with suppress(HeldUp), self._mark.on(driven), watch.watching():  # it may come at the very end
            reaction = self._reaction(agent, state, fresh, unseen, now, values)
        if self._mark.doomed is driven:  # even if its code has caught the interrupt
            self.forget(state.run_id)
            return Stall("hang", HELD_UP, self._mark.stack, state.version, driven.code, passing=False)
        return reaction

    def _reaction(
        self, agent: AgentDef, state: RunState, fresh: list[Event], unseen: int, now: int, values: Values
    ) -> list[Event] | Stall | Lacks:
        try:
            return self._begin(agent, state, fresh, unseen, now, values)
        except _RefusedInput as refused:
            self.forget(state.run_id)
            return [self._failed(state.run_id, refused.__cause__ or refused)]
        except BaseException as error:  # noqa: BLE001 - the boundary to agent code, along history and at its end
            self.forget(state.run_id)
            _reraise_interrupt(error)
            return self._stall_of(state, error)

    def _agent(self, state: RunState) -> AgentDef | None:
        return self._app.agent_of(state.request.agent, state.version) if state.request else None

    def _agent_or_stall(self, state: RunState, name: str) -> AgentDef | Stall:
        agent, code = self._agent(state), ""
        if agent is None and (versions := self._app.versions(name)):
            reason, message = "unknown_version", f"version {spoken(state.version)[0]} of agent {name}"
            message = f"{message} is not registered here, which has {', '.join(versions)}"
            message = f"{message}: deploy it, or `refold run migrate {state.run_id}`"
        elif agent is None:
            agents = f"it has {', '.join(sorted(self._app.agents))}" if self._app.agents else "it has none"
            reason, message = "unknown_agent", f"there is no agent {name} in {self._app.name}, {agents}"
        elif needs := agent.needs(state.version):
            reason, code = "other_foundation", self._code(agent)
            message = f"its code may run in another order here: the run needs {needs}; serve it with planners of those"
        else:
            return agent
        return Stall(reason, message, "", state.version, code, passing=False)

    def _stall_of(self, state: RunState, error: BaseException) -> Stall:
        cause = error.__cause__ if isinstance(error, NonDeterminismError) and error.__cause__ else error
        failure = failure_of(cause)
        message = failure.message if cause is error else f"{failure.message}; {text_of(error)}"
        stack = "".join(traceback.format_tb(cause.__traceback__))[-STACK:]
        passing = isinstance(cause, PASSING)
        return Stall(failure.code, message, stack, state.version, self.code_of(state), passing, error)

    def _begin(
        self, agent: AgentDef, state: RunState, fresh: list[Event], unseen: int, now: int, values: Values
    ) -> list[Event] | Lacks:
        """Drive the code, after a RunMigrated event if the run began without its version or its completed input."""
        draws = agent.draws and unseen > len(state.outcomes)
        if state.version and not draws:
            return self._drive(agent, state, fresh, unseen, now, values)
        input_text = state.request.input if state.request else ""
        whole = self._read_completed(agent, state, fresh, values) if draws else ""
        if state.version and not whole:
            return self._drive(agent, state, fresh, unseen, now, values)
        begins = [events.RunMigrated(agent.version, "", self._app.manifest(agent.name), whole)]
        reaction: list[Event] | Lacks | None = None
        try:
            reaction = self._drive(agent, state, [*fresh, *begins], unseen, now, values)
        finally:
            if not isinstance(reaction, list):  # nothing of this is written
                state.read_as(input_text)
        return [*begins, *reaction] if isinstance(reaction, list) else reaction

    def _read_completed(self, agent: AgentDef, state: RunState, fresh: list[Event], values: Values) -> str:
        """Have a run read its completed input; return that if no event at its start can record it."""
        if whole := self._completed(agent, state, values):
            state.read_as(whole)
            for place, event in enumerate(fresh):
                if isinstance(event, events.RunStarted) and state.version:
                    fresh[place], whole = replace(event, input=whole), ""
        return whole

    def _completed(self, agent: AgentDef, state: RunState, values: Values) -> str:
        """The input with its drawn defaults, to be recorded for every replay; empty while large values are missing."""
        if lacking(state, values):
            return ""
        try:
            whole = agent.completed(self._input_text(state, values))
        except (UsageError, BlobError) as error:
            raise _RefusedInput from error
        if (size := utf8_bytes(whole)) > self._budget.payload_bytes:
            message = f"the input has {size:,} bytes with its defaults, more than {self._budget.payload_bytes:,}"
            raise _RefusedInput from RefoldError(message, code="too_large", hint="pass a reference to the data")
        return whole

    def _input_text(self, state: RunState, values: Values) -> str:
        assert state.request is not None, "a run that runs was requested"
        place = pointed(state.run_id, state.request)
        return whole_value(values, place) if place else state.request.input

    def _drive(
        self, agent: AgentDef, state: RunState, fresh: list[Event], unseen: int, now: int, values: Values
    ) -> list[Event] | Lacks:
        """Run the code. **Raises** any error along history; an error at its end is data."""
        execution = self._live.get(state.run_id)
        if execution is None:
            if lacks := lacking(state, values):
                return lacks
            execution = self._open(agent, state, unseen, values)
            self._live.store(state.run_id, execution, state.size_bytes + agent.parked_bytes)
            driver = Handing(execution, state.run_id, values) if values else execution
            self._journal.counts["event.replayed"] += state.head.seq
            turns = deque([replay(driver, state, unseen)])
        else:
            execution.moment.now_ms = now
            woken = self._wake(execution, state, fresh, values)
            if isinstance(woken, Lacks):
                return woken
            turns = deque(woken)
        execution.moment.now_ms = now
        if not unseen and not state.mail.behind:
            return []
        if not turns:  # it has caught up before, with nothing to write; its waits may still be offered signals
            turns.append([])
        ahead = sum([isinstance(event, events.CallProposed) for event in fresh])
        closed: set[int] = set()
        seq, offers = state.head.seq + len(fresh), Offers(state, closed)
        frontier = _Frontier(execution, turns, seq, ahead, set(), closed, offers)
        try:
            added = self._go_on(agent, state, frontier, now)
            self._live.store(state.run_id, execution, state.size_bytes + agent.parked_bytes + execution.handed)
            return added
        except (NonDeterminismError, MemoryError, WaitsForNothingError):
            raise
        except BaseException as error:  # noqa: BLE001 - an agent may request anything unfit
            _reraise_interrupt(error)
            self.forget(state.run_id)
            return [self._failed(state.run_id, error)]

    def _wake(self, execution: Execution, state: RunState, fresh: list[Event], values: Values) -> list[Wanted] | Lacks:
        """Settle steps with fresh outcomes, unless a large value is not loaded."""
        driver = Handing(execution, state.run_id, values) if values else execution
        turns: list[Wanted] = []
        for event in fresh:
            if isinstance(event, WAKING) and not isinstance(event, events.RunStarted):
                outcome = state.outcomes[event.step][1]
                if (place := pointed(state.run_id, outcome)) is not None and place not in values:
                    self.forget(state.run_id)
                    return lacking(state, values) or Lacks([place])
                turns.append(driver.settle(event.step, outcome))
        return turns

    def _ending(self, run: RunId, agent: AgentDef, end: Returned | Raised) -> events.Terminal:
        """Terminal event of a run whose code has ended. **Raises** MemoryError: that is not the agent's result."""
        if isinstance(end, Raised):
            error = end.error
        else:
            try:
                if isinstance(end.value, Continuation):
                    check_bytes(end.value.input, self._budget.payload_bytes, "the input of the next generation has")
                    return events.RunContinued(end.value.input)
                return events.RunCompleted(agent.result_json(end.value))
            except BaseException as failure:  # noqa: BLE001 - the types of the result are the author's code, too
                error = failure
        _reraise_interrupt(error)
        if isinstance(error, MemoryError):
            raise error
        return self._failed(run, error)

    def _failed(self, run: RunId, error: BaseException) -> events.RunFailed:
        failure = failure_of(error)
        try:
            text = self._app.redact(f"{failure.code}: {failure.message}\n{stack_of(error)}")
        except Exception:  # noqa: BLE001 - the user's code; better no text than an unredacted one
            text = failure.code
        self._journal.news.append(("agent.raised", {"run_id": run, "stack": text}))
        return events.RunFailed(failure)

    def _open(self, agent: AgentDef, state: RunState, unseen: int, values: Values) -> Execution:
        assert state.request is not None, "a run that runs was requested"
        _ = agent.code  # it is scanned again, and its errors are not the input's fault
        moment = Moment()
        seed = state.request.seed
        context = self._app.context(state.run_id, seed=seed, moment=moment, history=state)
        try:
            code, left = agent.open(self._input_text(state, values), context), state.retried.left
            return Execution(code, moment, seed, self._budget.turn, left, context=context)
        except (UsageError, BlobError) as error:
            if unseen > len(state.outcomes):  # the log has no event of the code with this input
                raise _RefusedInput from error
            raise

    def _go_on(self, agent: AgentDef, state: RunState, frontier: _Frontier, now: int) -> list[Event]:
        """Events that the code requests, until it waits or ends. **Raises** RefoldError at a limit."""
        if state.size_bytes > (most := state.retried.most_bytes or self._budget.history_bytes):
            raise limit_reached("budget_bytes", f"its history has more than {most:,} bytes")
        most = state.retried.most_steps or self._budget.steps
        added = frontier.added
        while frontier.turns:
            denied: list[events.CallFailed] = []
            for step, intent in frontier.turns.popleft():
                if step > most:
                    raise limit_reached("budget_steps", f"it has more than {most:,} steps")
                fresh = self._record(state, intent, frontier, step=step, now=now)
                added += fresh
                denied += [event for event in fresh if isinstance(event, events.CallFailed)]
            if denied:
                frontier.deny(denied)
            if not frontier.turns:
                offered, outcome = frontier.offers.take(now)
                added += offered
                if outcome is not None:
                    frontier.settle(*outcome)
        return added + newly_exposed(state, frontier.execution.exposed) + self._last_events(agent, state, frontier)

    def _last_events(self, agent: AgentDef, state: RunState, frontier: _Frontier) -> list[Event]:
        """Last events of an entry: the code's end, or waits without an offer."""
        execution = frontier.execution
        if waits := execution.waits_for_nothing:
            hint = "its tasks wait for each other, or for what nobody ever sets"
            raise WaitsForNothingError(f"the code waits for nothing: {waits}", hint=hint)
        if execution.end is None:
            return frontier.offers.left()
        unheard = map(_failed_task, execution.unheard[:MOST_UNHEARD])
        return [*unheard, self._ending(state.run_id, agent, execution.end)]

    def _record(self, state: RunState, intent: Intent, frontier: _Frontier, *, step: int, now: int) -> list[Event]:
        """Events of a step that the code requests."""
        if isinstance(intent, GiveUp):
            return self._give_up_step(state, frontier, step)
        if not intent.fits():
            hint = "use ctx.call, ctx.note, asyncio.sleep"
            raise UsageError("the code asks for a step that its context did not make", hint=hint)
        intent, original = edited_by_operator(state, intent, step)
        if isinstance(intent, Call):
            fresh = self._propose(state, intent, frontier, step=step, now=now, original=original)
            frontier.ahead += 1
            if isinstance(fresh[-1], events.CallFailed):
                return fresh
        elif isinstance(intent, (StartRun, SubmitRun, PublishEvent)):
            event = delegated(state, intent, step, ahead=frontier.started, app=self._app, budget=self._budget)
            frontier.started += len(event.agents) if isinstance(event, events.EventPublished) else 1
            fresh = [event]
        else:
            if isinstance(intent, SendSignal):
                check_bytes(intent.data, self._budget.payload_bytes, f"the data of signal {intent.name} has")
            elif isinstance(intent, AnswerSignal):
                check_bytes(intent.result, self._budget.payload_bytes, f"the answer to {intent.signal_id} has")
            fresh = [intent.recorded(step)]
            if isinstance(started := fresh[0], events.WaitStarted):
                frontier.offers.begin(started)
        if intent.waits:
            frontier.requested.add(step)
        return fresh

    def _give_up_step(self, state: RunState, frontier: _Frontier, step: int) -> list[Event]:
        recorded = step in state.open or step in frontier.requested
        if not recorded or step in frontier.closed:  # settled in this very moment
            return []
        frontier.closed.add(step)
        return [events.StepGivenUp(step)]

    def _propose(
        self, state: RunState, intent: Call, frontier: _Frontier, *, step: int, now: int, original: str
    ) -> list[Event]:
        """Events of a call: its proposal, and its dispatch or the event that blocks it."""
        check_bytes(intent.args, self._budget.payload_bytes, f"the arguments of {intent.tool} have")
        key = idempotency_key(
            environment=self._environment, run=state.run_id, step=step, tool=intent.tool, args=intent.args
        )
        call = events.CallProposed(
            step=step,
            tool=intent.tool,
            args=intent.args,
            key=key,
            pool=intent.pool,
            effect=intent.effect,
            timeout_ms=intent.timeout_ms,
            retry=intent.retry,
            key_window_ms=intent.key_window_ms,
            label=intent.label,
            asked=original,
            builds_on=list(intent.builds_on),
        )
        authority, block = self._rules.authority, None
        if authority is not None:
            seq = frontier.seq + len(frontier.added) + 1
            call, block = asking.propose(state, call, authority, now, seq=seq, ahead=frontier.ahead)
        if state.account is not None or intent.reserve is not None:
            return self._propose_metered(state, intent, call, block, frontier, now)
        return [call, block or dispatch(call, 1, now, self._rules)]

    def _propose_metered(
        self, state: RunState, intent: Call, call: events.CallProposed, block: _Block, frontier: _Frontier, now: int
    ) -> list[Event]:
        """Events of a call that counts against budgets. **Raises** RefoldError if one is used up or lacks a price."""
        frontier.reservation = reservation = frontier.reservation or Reservation()
        if (repeated := _repeated(state, call, reservation)) and not isinstance(block, events.CallFailed):
            return [call, *repeated]
        attempted = _attempt(state, call, intent.reserve, now, self._rules)
        if block is not None:
            return [call, *budgets.kept_in(attempted, block)]
        judgement = budgets.judged(state, attempted, now, self._rules, reservation)
        reservation.reached.update(
            event.budget for event in judgement.recorded if isinstance(event, events.BudgetReached)
        )
        if judgement.outcome == "stop":
            assert judgement.failure is not None, "what is refused has a reason"
            raise RefoldError(judgement.failure.message, code=judgement.failure.code)
        if judgement.failure is not None:
            return [call, *budgets.turned_away(attempted, judgement)]
        reservation.amount = reservation.amount.plus((attempted.most or Amount())._replace(calls=1))
        return [call, *judgement.recorded, dispatch(call, 1, now, self._rules)]


def _failed_task(failed: tuple[str, BaseException]) -> events.TaskFailed:
    name, error = failed
    return events.TaskFailed(name[:LABEL_CHARS].encode("utf-8", "replace").decode(), failure_of(error))


def _reraise_interrupt(error: BaseException) -> None:
    """Re-raise a Ctrl-C that ends this process."""
    # In a service SIGINT has a handler, so there the code itself has raised it.
    cause = error.__cause__ or error
    if isinstance(cause, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise cause


def edited_by_operator(state: RunState, intent: Intent, step: int) -> tuple[Intent, str]:
    """Intent of a step, perhaps edited by an operator, and the code's own arguments. **Raises** RefoldError if the code
    makes another call, or the edit has another context."""
    edited, args, tool, _ = state.retried.edit
    if not args or step != edited:
        return intent, ""
    if not isinstance(intent, Call) or intent.tool != tool:
        message = f"the code asks for {intent.words}, and a call of {tool} was to have other arguments"
        raise RefoldError(message, code="edit", hint="go on without --edit, --edit-call")
    return replace(intent, args=in_context(args, intent.args)), intent.args


# Events from the code: exposed values, metered calls, started runs, waits for signals


def newly_exposed(state: RunState, exposed: Mapping[str, str]) -> list[Event]:
    """Events that make the values of a run those `exposed` by its code: changed ones, and removed ones last."""
    # A retry or another version may not come to the place where the code exposed a value before.
    if not (state.values or exposed):
        return []
    changed = [events.StatusSet(text, name) for name, text in exposed.items() if state.values.get(name, "") != text]
    return [*changed, *(events.StatusSet("", name) for name in sorted({*state.values} - {*exposed}))]


def delegated(
    state: RunState, intent: StartRun | SubmitRun | PublishEvent, step: int, *, ahead: int, app: App, budget: Bounds
) -> events.ChildStarted | events.RunSubmitted | events.EventPublished:
    """Event of a step that starts runs, after `ahead` others in this entry. **Raises** RefoldError at a limit."""
    if isinstance(intent, StartRun):
        payload, count, most = intent.input, 1, max(budget.payload_bytes, budget.blob_bytes)
        event: events.ChildStarted | events.RunSubmitted | events.EventPublished = intent.recorded(step)
    elif isinstance(intent, SubmitRun):
        payload, count, most, event = intent.input, 1, budget.payload_bytes, intent.recorded(step)
    else:
        # Listeners are resolved once and recorded: another version of the app may have others.
        agents = app.listeners(intent.name, intent.data)
        payload, count, most = intent.data, len(agents), budget.payload_bytes
        event = events.EventPublished(step, intent.name, intent.data, agents)
    check_bytes(payload, most, f"what {intent.words[:80]} is given has")
    if count and depth_of(state.run_id) >= budget.depth and not isinstance(intent, SubmitRun):
        raise limit_reached("budget_depth", f"it is {budget.depth} runs below the first, and starts others")
    if state.children + ahead + count > (many := state.retried.most_children or budget.children):
        raise limit_reached("budget_children", f"it starts more than {many:,} runs")
    return event


def check_bytes(text: str, most: int, subject: str) -> None:
    """Check the size of a text. **Raises** RefoldError."""
    if (size := utf8_bytes(text)) > most:
        message = f"{subject} {size:,} bytes, more than {most:,}"
        raise RefoldError(message, code="too_large", hint="pass a reference to where the data lies")


def limit_reached(code: str, message: str) -> RefoldError:
    names = "RUN_STEPS, RUN_BYTES, RUN_CHILDREN and RUN_DEPTH"
    hint = f"let a run do a part of the work and start the next; REFOLD_PLANNER__{names} are the limits"
    if code != "budget_depth":  # a run that is too deep has a parent, which gets its failure
        hint += f", and `refold run retry --{code.removeprefix('budget_')}` raises this one for a run"
    return RefoldError(message, code=code, hint=hint)


def _repeated(state: RunState, call: events.CallProposed, reservation: Reservation) -> list[Event]:
    """Events that end a call made too often with the same arguments."""
    if state.account is None or not (most := state.account.limits.same):
        return []
    name = call_digest(call.tool, call.args)
    reservation.repeats[name] = before = reservation.repeats.get(name, state.account.repeats.get(name, 0)) + 1
    if before <= most:
        return []
    message = f"{call.tool} was called {most} times with these arguments: do something else, or ask somebody"
    return [events.CallRepeated(call.step, before), events.CallFailed(call.step, 0, events.Failure(REPEATED, message))]


def _attempt(state: RunState, call: events.CallProposed, reserve: Reserve | None, now: int, rules: Rules) -> Attempted:
    """The first attempt of a call, with its largest cost. **Raises** RefoldError if a budget of money lacks a price."""
    if reserve is None:
        return Attempted(call, 1, None, cheap=False)
    if (most := budgets.amount_of(reserve, rules)) is not None:
        return Attempted(call, 1, most, reserve.cheap)
    if budgets.bounds_money(state, now, rules):
        message = f"nobody knows what a call of {reserve.model or call.tool} costs, and a budget of money counts it"
        raise RefoldError(message, code="no_price", hint="give App(prices=...) its price, or the call Reserve(usd=...)")
    return Attempted(call, 1, Amount(min(COUNTED_MOST, reserve.tokens)), reserve.cheap)


OFFERS_PER_TURN = 2_000
"""Matches evaluated in one entry, at 7 to 30 microseconds each."""

MOST_MATCHING = 1_000
"""Most open waits of one name if one has a match: a signal is offered to all at once."""


class Offers:
    """Signals offered to waits in one entry; `closed` steps have ended since `state`."""

    def __init__(self, state: RunState, closed: set[int]) -> None:
        self._state, self._closed = state, closed
        first = 1 if state.unseen else state.mail.behind
        self._waits = deque([wait for wait in waiting.open_waits(state) if wait.step >= first] if first else ())
        self._open: dict[str, set[int]] = {}
        self._delivered: set[str] = set()
        self._offered = 0

    def begin(self, wait: events.WaitStarted) -> None:
        """Add a wait. **Raises** RefoldError if it is one too many."""
        self._waits.append(wait)
        if not wait.match:
            return
        if wait.name not in self._open:
            self._open[wait.name] = {*self._state.mail.waits.get(wait.name, ())}
        beside = self._open[wait.name]
        beside.add(wait.step)
        if len(beside) > MOST_MATCHING:
            beside -= self._closed
        if len(beside) > MOST_MATCHING:
            message = f"more than {MOST_MATCHING:,} of its waits for {wait.name} are open, and this one has a match"
            raise RefoldError(message, code="too_many_waits", hint="give what they wait for names of their own")

    def take(self, now: int) -> tuple[list[Event], tuple[int, Settled] | None]:
        """Offer kept signals to the waits in turn; return events, and the first wait that ends with its outcome."""
        offered: list[Event] = []
        while self._waits and self._offered < OFFERS_PER_TURN:
            wait = self._waits.popleft()
            if wait.step in self._closed:
                continue
            if wait.match:
                self._offered += len(self._state.mail.names.get(wait.name, ()))
            signal, failed = waiting.find_kept(self._state, wait, self._delivered)
            offered += failed
            # One at a time: the code may then give up another wait, which must not have taken a signal.
            if signal is not None:
                self._delivered.add(signal.signal_id)
                return [*offered, events.WaitEnded(wait.step, signal.signal_id)], (wait.step, signal)
            opened = self._state.open.get(wait.step)
            if opened and 0 < opened.due_ms <= now:
                # It was kept open for a signal that another wait has taken by now.
                expired = events.WaitExpired(wait.step)
                return [*offered, expired], (wait.step, expired)
        return offered, None

    def left(self) -> list[Event]:
        """Event about waits that were not offered signals, if any."""
        behind = self._waits[0].step if self._waits else 0
        return [events.WaitsPostponed(behind)] if behind != self._state.mail.behind else []
