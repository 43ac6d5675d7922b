"""Transitions of a run's signals, waits and callbacks."""

from collections.abc import Callable
from typing import Any

from refold.core import events
from refold.core.run.state import OpenStep, RunState


def _received(state: RunState, event: events.SignalReceived, seq: int, at_ms: int) -> None:
    if event.signal_id in state.mail.taken or event.signal_id in state.mail.kept:
        raise KeyError(event.signal_id)
    state.mail = state.mail.receive(event, seq, at_ms)


def _dropped(state: RunState, event: events.SignalDropped, seq: int, at_ms: int) -> None:
    state.mail = state.mail._replace(full=True)


def _wait_started(state: RunState, event: events.WaitStarted, seq: int, at_ms: int) -> None:
    state.keep(state.number(event, seq), OpenStep("wait", seq, event.until_ms))
    state.mail = state.mail.wait(event.name, event.step)


def _postponed(state: RunState, event: events.WaitsPostponed, seq: int, at_ms: int) -> None:
    state.mail = state.mail._replace(behind=event.first)


def _match_failed(state: RunState, event: events.MatchFailed, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    failure = events.Failure("match_failed", event.error)
    state.keep(event.step, opened._replace(failure=failure), opened)


def _wait_ended(state: RunState, event: events.WaitEnded, seq: int, at_ms: int) -> None:
    signal, state.mail = state.mail.take(event.signal_id, event.step)
    wait = state.steps[event.step - 1]
    if not isinstance(wait, events.WaitStarted) or wait.name != signal.name:
        raise KeyError(event.step)
    waits_no_more(state, event.step)
    state.settle(event.step, signal, seq=seq, at_ms=at_ms)


def _expired(state: RunState, event: events.WaitExpired, seq: int, at_ms: int) -> None:
    if state.open[event.step].phase not in ("wait", "callback"):
        raise KeyError(event.step)
    waits_no_more(state, event.step)
    state.settle(event.step, event, seq=seq, at_ms=at_ms)


def _callback_created(state: RunState, event: events.CallbackCreated, seq: int, at_ms: int) -> None:
    state.keep(state.number(event, seq), OpenStep("callback", seq, event.until_ms))
    state.callbacks = state.callbacks.set(event.digest, event.step)


def _answered(state: RunState, event: events.CallbackCompleted | events.CallbackFailed, seq: int, at_ms: int) -> None:
    if state.open[event.step].phase != "callback":
        raise KeyError(event.step)
    state.settle(event.step, event, seq=seq, at_ms=at_ms)


def waits_no_more(state: RunState, step: int) -> None:
    if isinstance(wait := state.steps[step - 1], events.WaitStarted):
        state.mail = state.mail.wait_no_more(wait.name, step)


TRANSITIONS: dict[type, Callable[[RunState, Any, int, int], None]] = {
    events.SignalReceived: _received,
    events.SignalDropped: _dropped,
    events.WaitStarted: _wait_started,
    events.WaitsPostponed: _postponed,
    events.MatchFailed: _match_failed,
    events.WaitEnded: _wait_ended,
    events.WaitExpired: _expired,
    events.CallbackCreated: _callback_created,
    events.CallbackCompleted: _answered,
    events.CallbackFailed: _answered,
    events.SignalAnswered: lambda state, event, seq, at_ms: state.answer(event, seq),
}
