"""Agent code in the planner: run as far as history allows, dropped whenever history turned out otherwise.

A coroutine here is a cache of its run's history. Forgetting one is always safe; it is made again from the top.
"""

from __future__ import annotations

from collections import deque

from refold.core import events
from refold.core.errors import NonDeterminismError, RefoldError, text_of
from refold.core.ids import RunId
from refold.core.planning import asking
from refold.core.planning.asking import Proposal, dispatch
from refold.core.planning.verdict import Rules
from refold.core.run.replay import Call, Execution, Intent, Moment, Note, Raised, Sleep, replay
from refold.core.run.state import RunState
from refold.core.wire.canonical import idempotency_key
from refold.sdk.agent import AgentDef
from refold.sdk.app import App
from refold.sdk.context import Context
from refold.sdk.determinism import watch

MOST_DENIED = 1_000
"""Calls in one entry. Code that asks again and again for what a policy denies would never give its planner back."""


class Agents:
    """The executions of the runs of one lane."""

    def __init__(self, app: App, rules: Rules, environment: str) -> None:
        self._app = app
        self._rules = rules
        self._environment = environment
        self._live: dict[str, Execution] = {}

    def forget(self, run: RunId) -> None:
        """Drops the execution of a run, if there is one."""
        if execution := self._live.pop(run, None):
            execution.close()

    def react(self, state: RunState, fresh: list[events.Event], now: int) -> list[events.Event]:
        """What the agent's code adds, now that `fresh` events are folded into `state`; nothing if it still waits."""
        if state.status == "pending" or state.over or state.request is None:
            return []
        agent = self._app.agents.get(state.request.agent)
        if agent is None:
            failure = events.Failure("unknown_agent", f"no agent {state.request.agent!r} in {self._app.name}")
            return [events.RunFailed(failure)]
        try:
            with watch.watching():
                return self._drive(agent, state, fresh, now)
        except RefoldError as error:
            return [events.RunFailed(failure_of(error))]

    def _drive(self, agent: AgentDef, state: RunState, fresh: list[events.Event], now: int) -> list[events.Event]:
        assert state.request is not None, "a run that runs was requested"
        execution = self._live.get(state.run_id)
        if execution is None:
            moment = Moment()
            context = Context(state.run_id, seed=state.request.seed, moment=moment, find=self._app.find)
            execution = Execution(agent.open(state.request.input, context), moment)
            intents = replay(execution, state)
            execution.moment.now_ms = now
        else:
            intents = []
            execution.moment.now_ms = now
            for event in fresh:
                if isinstance(event, events.CallCompleted | events.CallFailed | events.SleepEnded):
                    intents += execution.settle(event.step, event)
        self._live[state.run_id] = execution
        added: list[events.Event] = []
        waiting, denied, seq = deque(intents), 0, state.head.seq + len(fresh)
        ahead = sum(isinstance(event, events.CallProposed) for event in fresh)
        while waiting:
            step, intent = waiting.popleft()
            proposed = self._propose(state, intent, step=step, seq=seq + len(added) + 1, ahead=ahead, now=now)
            added += proposed
            # What a policy denies is settled at once, and the code goes on with that.
            for event in proposed:
                ahead += isinstance(event, events.CallProposed)
                if isinstance(event, events.CallFailed):
                    denied += 1
                    waiting.extend(execution.settle(step, event))
            if denied > MOST_DENIED:
                message = f"a policy has denied {MOST_DENIED:,} calls without the agent waiting for anything"
                raise RefoldError(message, code="denied", hint="let it give up, or sleep between its tries")
        end = execution.end
        if isinstance(end, Raised):
            added.append(events.RunFailed(failure_of(end.error)))
        elif end is not None:
            added.append(events.RunCompleted(agent.result_json(end.value)))
        return added

    def _propose(
        self, state: RunState, intent: Intent, *, step: int, seq: int, ahead: int, now: int
    ) -> list[events.Event]:
        """What a step of the code is in the log, at `seq`. `ahead`: the calls before it in this entry."""
        if isinstance(intent, Note):
            return [events.NoteRecorded(step, intent.kind, intent.data)]
        if isinstance(intent, Sleep):
            return [events.SleepStarted(step, intent.until_ms)]
        assert isinstance(intent, Call), "gather is never a step"
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
        )
        authority = self._rules.authority
        if authority is None:
            return [call, dispatch(call, 1, now, self._rules)]
        call, held = asking.propose(state, Proposal(call, seq, ahead), authority, now)
        return [call, held or dispatch(call, 1, now, self._rules)]


def failure_of(error: BaseException) -> events.Failure:
    """An error as data: its code, or its class where it has none."""
    text = text_of(error)
    if isinstance(error, NonDeterminismError):
        return events.Failure(error.code, text, f"step {error.fields.get('step')}")
    if isinstance(error, RefoldError):
        code = error.fields.get("code", error.code)
        return events.Failure(code if isinstance(code, str) else error.code, text)
    hint = "; an agent has no event loop: await ctx.call, ctx.sleep, ctx.gather" if "event loop" in text else ""
    return events.Failure(type(error).__name__, f"{text}{hint}")
