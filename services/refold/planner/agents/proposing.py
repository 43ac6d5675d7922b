"""How what an agent's code asks for becomes events: calls that are counted, runs that it starts, waits for signals."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from refold.core import events
from refold.core.errors import RefoldError
from refold.core.ids import depth_of
from refold.core.planning import budgets, waiting
from refold.core.planning.budgets import REPEATED, Attempted, Tally
from refold.core.planning.outgoing import dispatch
from refold.core.planning.verdict import Rules
from refold.core.run.delegated import PublishEvent, SendSignal, StartRun
from refold.core.run.metering import Reserve
from refold.core.run.purse import COUNTED_MOST, Amount, call_digest
from refold.core.run.state import RunState, Settled
from refold.core.wire.canonical import utf8_bytes
from refold.planner.settings import Bounds
from refold.sdk.app import App


def delegated(
    state: RunState, intent: StartRun | PublishEvent, step: int, *, ahead: int, app: App, budget: Bounds
) -> events.ChildStarted | events.EventPublished:
    """The event of a step that starts others. `ahead`: how many the run starts before it in this entry.

    **Raises** RefoldError where it starts too many, too deep, or with too much.
    """
    if isinstance(intent, StartRun):
        given, count, most = intent.input, 1, max(budget.payload_bytes, budget.blob_bytes)
        event: events.ChildStarted | events.EventPublished = intent.recorded(step)
    else:
        # Who listens is asked once, and stands in the log: another version of the app may have others.
        agents = app.listeners(intent.name, intent.data)
        given, count, most = intent.data, len(agents), budget.payload_bytes
        event = events.EventPublished(step, intent.name, intent.data, agents)
    if (size := utf8_bytes(given)) > most:
        message = f"what {intent.words[:80]} is given has {size:,} bytes, more than {most:,}"
        raise RefoldError(message, code="too_large", hint="pass a reference to where the data lies")
    if count and depth_of(state.run_id) >= budget.depth:
        raise spent("budget_depth", f"it is {budget.depth} runs below the first, and starts others")
    if state.children + ahead + count > (many := state.retried.most_children or budget.children):
        raise spent("budget_children", f"it starts more than {many:,} runs")
    return event


def telling(intent: SendSignal, step: int, most: int) -> events.SignalSent:
    """The event of a step that tells another run something. **Raises** RefoldError where that is too much."""
    if (size := utf8_bytes(intent.data)) > most:
        message = f"the data of signal {intent.name} has {size:,} bytes, more than {most:,}"
        raise RefoldError(message, code="too_large", hint="pass a reference to where the data lies")
    return intent.recorded(step)


def started_by(event: events.ChildStarted | events.EventPublished) -> int:
    """How many runs an event starts."""
    return len(event.agents) if isinstance(event, events.EventPublished) else 1


def spent(code: str, message: str) -> RefoldError:
    """What a run fails with that takes more than its budget."""
    names = "RUN_STEPS, RUN_BYTES, RUN_CHILDREN and RUN_DEPTH"
    hint = f"let a run do a part of the work and start the next; REFOLD_PLANNER__{names} are the limits"
    if code != "budget_depth":  # a run that is too deep has a parent, which has heard of its failure
        hint += f", and `refold run retry --{code.removeprefix('budget_')}` raises this one for a run"
    return RefoldError(message, code=code, hint=hint)


@dataclass(slots=True)
class Metered:
    """A call that is asked for, what it may take as its maker says, and what a policy has to say before it goes out."""

    call: events.CallProposed
    reserve: Reserve | None
    held: events.CallFailed | events.ApprovalRequested | None


def propose_metered(state: RunState, new: Metered, tally: Tally, now: int, rules: Rules) -> list[events.Event]:
    """The events of a call. **Raises** RefoldError where a budget is used up, or nobody knows what the call costs."""
    call = new.call
    if (repeated := _repeated(state, call, tally)) and not isinstance(new.held, events.CallFailed):
        return [call, *repeated]
    asked = Attempted(call, 1, _most(state, new, now, rules), new.reserve is not None and new.reserve.cheap)
    if new.held is not None:
        return [call, *budgets.kept_in(asked, new.held)]
    found = budgets.judged(state, asked, now, rules, tally)
    tally.told.update(event.budget for event in found.said if isinstance(event, events.BudgetReached))
    if found.outcome == "stop":
        assert found.failure is not None, "what is refused has a reason"
        raise RefoldError(found.failure.message, code=found.failure.code)
    if found.failure is not None:
        return [call, *budgets.turned_away(asked, found)]
    tally.amount = tally.amount.plus((asked.most or Amount())._replace(calls=1))
    return [call, *found.said, dispatch(call, 1, now, rules)]


def _repeated(state: RunState, call: events.CallProposed, tally: Tally) -> list[events.Event]:
    if state.purse is None or not (most := state.purse.limits.same):
        return []
    name = call_digest(call.tool, call.args)
    tally.asked[name] = before = tally.asked.get(name, state.purse.asked.get(name, 0)) + 1
    if before <= most:
        return []
    message = f"{call.tool} was called {most} times with these arguments: do something else, or ask somebody"
    return [
        events.CallRepeated(call.step, before),
        events.CallFailed(call.step, 0, events.Failure(REPEATED, message)),
    ]


def _most(state: RunState, new: Metered, now: int, rules: Rules) -> Amount | None:
    call, reserve = new.call, new.reserve
    if reserve is None:
        return None
    if (most := budgets.amount_of(reserve, rules)) is not None:
        return most
    if budgets.bounds_money(state, now, rules):
        message = f"nobody knows what a call of {reserve.model or call.tool} costs, and a budget of money counts it"
        raise RefoldError(message, code="no_price", hint="give App(prices=...) its price, or the call Reserve(usd=...)")
    return Amount(min(COUNTED_MOST, reserve.tokens))


ASKED_AT_ONCE = 2_000
"""How often matches are asked in one entry: 7 microseconds each, or 30 where the process has not room for them all."""

MOST_MATCHING = 1_000
"""Waits of one name that may be open when one with a match begins: a signal is offered to all of them at once."""


class Offers:
    """What is offered in one entry, on top of a state. `closed` are the steps that are over since."""

    def __init__(self, state: RunState, closed: set[int]) -> None:
        self._state, self._closed = state, closed
        first = 1 if state.unseen else state.mail.behind
        self._waits = deque([wait for wait in waiting.open_waits(state) if wait.step >= first] if first else ())
        self._open: dict[str, set[int]] = {}
        self._taken: set[str] = set()
        self._asked = 0

    def begin(self, wait: events.WaitStarted) -> None:
        """A wait begins. **Raises** RefoldError where it is one too many."""
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

    def take(self, now: int) -> tuple[list[events.Event], tuple[int, Settled] | None]:
        """Offers what is kept to one wait after the other: what is to be told, and the first that is over, and how.

        One at a time: what the code makes of it may be to give up another, which then has taken nothing.
        """
        told: list[events.Event] = []
        while self._waits and self._asked < ASKED_AT_ONCE:
            wait = self._waits.popleft()
            if wait.step in self._closed:
                continue
            if wait.match:
                self._asked += len(self._state.mail.names.get(wait.name, ()))
            signal, failed = waiting.find_kept(self._state, wait, self._taken)
            told += failed
            if signal is not None:
                self._taken.add(signal.signal_id)
                return [*told, events.WaitEnded(wait.step, signal.signal_id)], (wait.step, signal)
            if wait.step in self._state.open and 0 < wait.until_ms <= now:
                # It was not let go while something lay there for it, which another wait has by now.
                expired = events.WaitExpired(wait.step)
                return [*told, expired], (wait.step, expired)
        return told, None

    def left(self) -> list[events.Event]:
        """What is to be said, when the entry is complete, of waits that were not asked."""
        behind = self._waits[0].step if self._waits else 0
        return [events.WaitsPostponed(behind)] if behind != self._state.mail.behind else []
