"""Requests of calls that go out once more, or at last: nobody has answered them, or they were kept back."""

from __future__ import annotations

from refold.core.ids import call_id
from refold.core.planning.outgoing import answer_ms
from refold.core.planning.verdict import Rules
from refold.core.run.state import RunState
from refold.planner.inbox import Pending
from refold.planner.outbox import Outbox
from refold.planner.timers import Timers
from refold.planner.unanswered import SentRequest
from refold.runtime.lanes import Journal


class Urging:
    """The calls of one lane. **Units**: `now` in milliseconds since 1970."""

    def __init__(self, outbox: Outbox, timers: Timers, rules: Rules, journal: Journal) -> None:
        self._outbox, self._timers, self._rules, self._journal = outbox, timers, rules, journal

    def ask_again(self, state: RunState, step: int, item: Pending, now: int) -> None:
        """A call is unanswered. Its request goes out again once executors have passed it, and late enough after it."""
        unanswered, opened, proposed = self._outbox.unanswered, state.open[step], state.call(step)
        call = call_id(state.run_id, opened.seq)
        passed = item.passed
        item.finish()
        sent = unanswered.last(call)
        if sent is None or sent.attempt != opened.attempt:
            # A predecessor has sent it, and nobody here knows where to.
            sent = SentRequest(opened.attempt, "", 0, now, 0)
        elif now < (due := sent.at_ms + answer_ms(proposed, sent.times, self._rules)):
            unanswered.watch(call, due)
            return
        elif not passed:
            unanswered.wait(call)
            return
        self._journal.counts["request.again"] += 1
        self._outbox.ask_again(state, step, issued=sent.issued, now=now)
        unanswered.watch(call, now + answer_ms(proposed, sent.times + 1, self._rules))

    def go_on(self, state: RunState, step: int, now: int) -> None:
        """A call goes out that was kept back. What its time was before says nothing about its answer."""
        self._outbox.go_on(state, step, now)
        self._timers.set(state.run_id, step, 0)
        call = call_id(state.run_id, state.open[step].seq)
        self._outbox.unanswered.watch(call, now + answer_ms(state.call(step), 0, self._rules))
