"""Runs in memory, decided and written as by a planner, without a log: forks read recorded inputs, tests write them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from refold.core.approval.question import in_context
from refold.core.errors import NonDeterminismError, RefoldError
from refold.core.events import Entry, Event
from refold.core.ids import RunId, log_key
from refold.core.planning.decide import decide
from refold.core.planning.pausing import RequestedAt
from refold.core.planning.verdict import Input, Rules, Ruling, Start
from refold.core.run import pausing
from refold.core.run.chain import Head
from refold.core.run.fold import advance, extended, wakes
from refold.core.run.handed import NO_VALUES, Lacks, Values
from refold.core.run.state import RunState
from refold.core.wire import codec
from refold.engine.planner.agents.agent_host import Agents
from refold.engine.planner.agents.stalls import Stall
from refold.engine.planner.log.windows import BudgetAccounts
from refold.engine.planner.settings import Bounds
from refold.sdk.app import App

ATTEMPT_MS = 1_000
"""Duration, on the clock of a run in memory, of a call that no executor of a pool answers."""


class WrittenEntry(NamedTuple):
    """Entry of a run in memory, its run-log key and value, and the state after it."""

    entry: Entry
    record: tuple[bytes, bytes]
    state: RunState


class StandstillError(RefoldError, code="standstill"):
    """Disagreement of code and history, from this `step` on; 0: unknown. `stall` is None without large values."""

    def __init__(self, run: RunId, stall: Stall | Lacks) -> None:
        self.run_id, self.step, self.stall = run, 0, stall if isinstance(stall, Stall) else None
        if isinstance(stall, Lacks):
            super().__init__(f"large values are not here: {', '.join(place for _, place in stall.places)}"[:300])
            return
        super().__init__(f"{stall.reason}: {stall.message}")
        if isinstance(stall.error, NonDeterminismError):
            step = stall.error.fields.get("step")
            self.step = step if isinstance(step, int) else 0


class _EditedAgents(Agents):
    def __init__(
        self, app: App, rules: Rules, environment: str, budget: Bounds | None, edits: Mapping[tuple[str, int], str]
    ) -> None:
        super().__init__(app, rules, environment, budget=budget)
        self._edits = edits

    def _propose(
        self, state: RunState, intent: Any, frontier: Any, *, step: int, now: int, original: str
    ) -> list[Event]:
        if args := self._edits.get((state.run_id, step)):
            intent, original = replace(intent, args=in_context(args, intent.args)), intent.args
        return super()._propose(state, intent, frontier, step=step, now=now, original=original)


class Runner:
    """Runs of one family, whose latest states `state_of` returns. `values` are their large values, `edits` other
    arguments of calls, by run and step. **Units**: `now` in milliseconds."""

    def __init__(
        self,
        app: App,
        rules: Rules,
        state_of: Callable[[RunId], RunState | None],
        *,
        bounds: Bounds | None = None,
        values: Values = NO_VALUES,
        edits: Mapping[tuple[str, int], str] | None = None,
    ) -> None:
        assert rules.authority is not None, "calls are judged"
        self.rules = replace(rules, above=BudgetAccounts(state_of).above)
        self._values = values
        self._agents = _EditedAgents(app, self.rules, rules.authority.environment, bounds, edits or {})
        self.forget, self.forget_all = self._agents.forget, self._agents.forget_all

    def decide(self, state: RunState, message: Input, now: int, *, sent: RequestedAt | None = None) -> Ruling:
        """Judge an input without the agent's code: return the events to record, or a ruling that writes no entry."""
        before = None if isinstance(message, Start) else state
        return decide(before, message, now, self.rules, sent=sent, values=self._values)

    def react(self, state: RunState, fresh: list[Event], now: int, *, verify: bool = False) -> list[Event]:
        """Events that the run's code adds after the `fresh` ones. **Raises** StandstillError."""
        reaction = self._agents.react(state, fresh, now, values=self._values, verify=verify)
        if isinstance(reaction, Lacks | Stall):
            raise StandstillError(state.run_id, reaction)
        return reaction

    def take(
        self, before: RunState, verdict: list[Event], now: int, *, by: tuple[str, bytes], halt: bool = False
    ) -> WrittenEntry | None:
        """Build the entry of an input; None if it changes nothing. `by`: actor, nonce. `halt` or a pause: no code runs.
        **Raises** StandstillError."""
        seq, at_ms, after = before.head.seq + 1, max(now, before.at_ms), before.copy()
        advance(after, verdict, seq=seq, at_ms=at_ms)
        if halted := (halt or bool(after.paused)) and not after.over:
            self.forget(after.run_id)
        reaction = [] if halted else self.react(after, verdict, now)
        if not verdict and not reaction:
            return None
        fresh = extended(after, verdict, reaction, seq=seq, at_ms=at_ms)
        fresh = extended(after, fresh, pausing.status_change(before, after, fresh), seq=seq, at_ms=at_ms)
        if (unseen := after.unseen + wakes(verdict) if halted else 0) != after.unseen:
            after = replace(after, unseen=unseen)
        entry = Entry(before.run_id, seq, before.head.id, at_ms, None, *by, fresh, unseen > 0)
        name, value = codec.encode_entry(entry)
        after.link(Head(name, entry.last_seq))
        return WrittenEntry(entry, (log_key(entry.run_id, seq, name), value), after)
