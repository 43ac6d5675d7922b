"""Delivery of signals to waits, and of answers to callbacks. A signal goes to the first open wait of its name that it
matches, or is kept for later ones. While a run's code is held, all are kept: its later waits are unknown."""

import dataclasses
import re
from collections.abc import Collection
from functools import lru_cache
from hmac import compare_digest

from refold.core import events
from refold.core.approval.condition import Condition, Facts, Language
from refold.core.errors import UsageError
from refold.core.ids import callback_digest
from refold.core.messages import RunSignal
from refold.core.planning import generations
from refold.core.planning.verdict import Ignore, Refuse, Rules, Ruling
from refold.core.run.mailbox import signal_bytes
from refold.core.run.state import OpenStep, RunState
from refold.core.wire import canonical
from refold.core.wire.canonical import utf8_bytes
from refold.core.wire.fits import misfit

OF_SIGNALS = Language(
    {
        "data": "dyn: what the signal says, any JSON value",
        "actor": "string: who says that they sent it",
        "signal_id": "string: its id",
    }
)

MATCHED_BYTES = 32_768
"""Largest signal on which a match is evaluated: 3 ms to parse, once for all waits."""

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.:@~-]{0,126}[A-Za-z0-9_])?\Z")


def check_name(name: object) -> str:
    """Check the name of a signal or callback. **Raises** UsageError."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise UsageError(f"{name!r:.80} is not a name", hint="use up to 128 letters, digits and _ . : @ ~ -")
    return str.__str__(name)


def check_match(match: object) -> None:
    """Check a condition on a signal. **Raises** UsageError."""
    if not isinstance(match, str):
        raise UsageError(f"the match {match!r:.80} is no text", hint="write it in CEL: \"data.order == 'o-1'\"")
    try:
        Condition(match, OF_SIGNALS)
    except UsageError as error:
        raise UsageError(f"the match {match[:80]!r}: {error.message}", hint=error.hint) from None


def take_signal(state: RunState, message: RunSignal, at_ms: int, rules: Rules) -> Ruling:
    """Ruling on a signal to a run that is not over. **Units**: `at_ms`, its append time."""
    signal = events.SignalReceived(message.signal_id, message.name, message.data, message.actor)
    if (earlier := _signal_received(state, signal.signal_id)) is not None:
        if (earlier.name, earlier.data) == (signal.name, signal.data):
            return Ignore("the signal was received before")
        return Refuse("conflict", f"run {state.run_id} has received another signal of this id; choose another id")
    if generations.has_taken(state, signal.signal_id):
        return Ignore("an earlier generation has taken the signal")
    if state.unseen:
        taken, failures, signal = 0, list[events.Event](), dataclasses.replace(signal, sent_ms=at_ms)
    else:
        taken, failures = _offer_to_waits(state, signal, at_ms)
    if taken:
        return [signal, *failures, events.WaitEnded(taken, signal.signal_id)]
    size = signal_bytes(signal)
    if state.mail.bytes + size <= rules.signal_bytes:
        return [signal, *failures]
    if state.mail.full:
        reason = f"run {state.run_id} keeps {state.mail.bytes:,} bytes of signals that nobody has waited for so far"
        return Refuse("no_room", f"{reason}: say it again when it has taken some, or send less")
    return [events.SignalDropped(signal.signal_id, signal.name, size, signal.actor), *failures]


def _offer_to_waits(state: RunState, signal: events.SignalReceived, at_ms: int) -> tuple[int, list[events.Event]]:
    """First open wait that takes a signal, 0 if none does, and the failed matches to record."""
    failures: list[events.Event] = []
    for step in state.mail.waits.get(signal.name, ()):
        if 0 < state.mail.behind <= step:
            break
        wait, opened = state.steps[step - 1], state.open[step]
        assert isinstance(wait, events.WaitStarted), "only waits are in a mailbox"
        if _is_due_by(opened, at_ms):
            continue
        result = matches(wait, signal)
        if result is True:
            return step, failures
        if result and opened.failure is None:
            failures.append(events.MatchFailed(step, signal.signal_id, result))
    return 0, failures


def find_kept(
    state: RunState, wait: events.WaitStarted, used: Collection[str]
) -> tuple[events.SignalReceived | None, list[events.MatchFailed]]:
    """Kept signal for a wait, except those `used` since, and the failed matches to record. An open wait takes only
    signals that came before its timeout."""
    failures: list[events.MatchFailed] = []
    opened = state.open.get(wait.step)
    for _, came_ms, signal in state.mail.named(wait.name):
        if signal.signal_id in used or (opened and _is_due_by(opened, came_ms)):
            continue
        result = matches(wait, signal)
        if result is True:
            return signal, failures
        if result and not failures and not (opened and opened.failure):
            failures.append(events.MatchFailed(wait.step, signal.signal_id, str(result)))
    return None, failures


def open_waits(state: RunState) -> list[events.WaitStarted]:
    steps = sorted(step for steps in state.mail.waits.values() for step in steps)
    waits = [state.steps[step - 1] for step in steps]
    return [wait for wait in waits if isinstance(wait, events.WaitStarted)]


def expire(state: RunState, step: int) -> Ruling:
    """End a wait or callback at its timeout."""
    # A run that was held or is behind has not matched its signals yet: one that came in time still ends the wait.
    wait, postponed = state.steps[step - 1], state.unseen or 0 < state.mail.behind <= step
    if postponed and isinstance(wait, events.WaitStarted) and find_kept(state, wait, ())[0]:
        return Ignore("a signal came in time for it, which it was not asked about so far")
    return [events.WaitExpired(step)]


def offered_to(state: RunState, signal: RunSignal, ruling: Ruling) -> int:
    """Number of waits that a signal was matched with."""
    waits = state.mail.waits.get(signal.name, ())
    for event in ruling if isinstance(ruling, list) else ():
        if isinstance(event, events.WaitEnded):
            return waits.index(event.step) + 1
    return len(waits)


def take_answer(state: RunState, answer: RunSignal, at_ms: int) -> Ruling:
    digest = callback_digest(answer.callback)
    step = state.callbacks.get(digest)
    callback = state.steps[step - 1] if step else None
    if not step or not isinstance(callback, events.CallbackCreated) or not compare_digest(callback.digest, digest):
        return Refuse("unknown_callback", f"run {state.run_id} has made no callback with this token")
    opened, subject = state.open.get(step), f"the callback {callback.name} of run {state.run_id}"
    if opened is None:
        return _on_closed_callback(state, step, answer, subject)
    if _is_due_by(opened, at_ms):
        return Refuse("closed", f"{subject} was valid until {opened.due_ms}, and this came later")
    if answer.failure:
        failure = events.Failure("callback_failed", answer.failure)
        return [events.CallbackFailed(step, failure, answer.key, answer.actor)]
    if callback.schema and (why := misfit(callback.schema, canonical.parse(answer.data))):
        return Refuse("unfit", f"{subject} takes no such result, and waits on: {why}")
    return [events.CallbackCompleted(step, answer.data, answer.key, answer.actor)]


def _on_closed_callback(state: RunState, step: int, answer: RunSignal, subject: str) -> Ruling:
    at_ms, outcome, _ = state.outcomes.get(step, (0, None, 0))
    if isinstance(outcome, events.WaitExpired):
        return Refuse("closed", f"{subject} expired at {at_ms}, nobody having answered")
    if not isinstance(outcome, events.CallbackCompleted | events.CallbackFailed):
        return Refuse("closed", f"{subject} was given up: nothing waits for it any more")
    if answer.key and answer.key == outcome.key:
        return Ignore("its sender has resolved the callback before")
    if isinstance(outcome, events.CallbackFailed):
        same, how = answer.failure == outcome.failure.message, "failed"
    else:
        same, how = not answer.failure and answer.data == outcome.result, "resolved"
    if same:
        return Ignore("the callback was resolved like this before")
    by = f" by {outcome.actor!r}" if outcome.actor else ""
    key = f", key {outcome.key!r}" if outcome.key else ""
    return Refuse("conflict", f"{subject} was {how} before{by} at {at_ms}{key}: its first answer counts")


def _signal_received(state: RunState, signal_id: str) -> events.SignalReceived | None:
    if (entry := state.mail.kept.get(signal_id)) is not None:
        return entry.signal
    step = state.mail.taken.get(signal_id)
    outcome = state.outcomes[step][1] if step else None
    return outcome if isinstance(outcome, events.SignalReceived) else None


def _is_due_by(opened: OpenStep, at_ms: int) -> bool:
    return 0 < opened.due_ms <= at_ms


def matches(wait: events.WaitStarted, signal: events.SignalReceived) -> bool | str:
    """True if a wait takes a signal; the reason as text if its match cannot be evaluated."""
    if not wait.match:
        return True
    if utf8_bytes(signal.data) > MATCHED_BYTES:
        return f"the signal has more than {MATCHED_BYTES:,} bytes, and is taken by waits without a match alone"
    try:
        return _condition(wait.match).evaluate(_facts(signal))
    except UsageError as error:  # another version of the library may refuse a match that compiled before
        return str(error)


@lru_cache(maxsize=1_024)
def _condition(match: str) -> Condition:
    # Cached: 5 KiB each, 30 microseconds to compile.
    return Condition(match, OF_SIGNALS)


@lru_cache(maxsize=32)
def _facts(signal: events.SignalReceived) -> Facts:
    # Cached: one signal may be matched with a thousand waits, and a wait with a thousand signals.
    variables = {"data": canonical.parse(signal.data), "actor": signal.actor, "signal_id": signal.signal_id}
    return Facts(variables, OF_SIGNALS)
