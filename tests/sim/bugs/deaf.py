"""Bugs of who is told something: a signal that two get, or none; a value that readers get, and the run has not."""

from __future__ import annotations

from typing import Any

from refold.core.events import SignalAnswered, SignalReceived, StatusSet, WaitEnded
from refold.core.planning import waiting
from refold.core.run.intents import AnswerSignal
from refold.core.run.mailbox import Mailbox
from refold.sdk.context import Context
from tests.sim.bugs.planting import Bug, wrapped

_take, _take_signal = Mailbox.take, waiting.take_signal


def _taken_and_kept(self: Mailbox, signal_id: str, step: int) -> tuple[SignalReceived, Mailbox]:
    signal, after = _take(self, signal_id, step)
    return signal, after._replace(kept=self.kept, names=self.names, bytes=self.bytes)


def _for_all(*given: Any, **more: Any) -> Any:
    """Wakes all who wait for a name, as if they had asked for it together."""
    ruling, state = _take_signal(*given, **more), given[0]
    ended = [event for event in ruling if isinstance(event, WaitEnded)] if isinstance(ruling, list) else []
    if not ended or not isinstance(ruling, list):
        return ruling
    others = [step for step in state.mail.waits[given[1].name] if step != ended[0].step]
    return [*ruling, *(WaitEnded(step, ended[0].signal_id) for step in others)]


def _as_last_time() -> Any:
    """Values go by what was written last, though its entry may not count."""
    last: dict[str, dict[str, str]] = {}

    def shown(state: Any, exposed: Any) -> Any:
        before, last[state.run_id] = last.get(state.run_id, {}), dict(exposed)
        return [StatusSet(text, name) for name, text in exposed.items() if before.get(name) != text]

    return shown


def _answers_again(answer: Any) -> Any:
    """A signal has two answers."""

    def answered(self: Context, *given: Any) -> None:
        answer(self, *given)
        self._answered.clear()
        answer(self, *given)

    return answered


def _answers_nobody(self: Context, *_: Any) -> None:
    """The code has answered, and the log has nothing of it."""


def _answers_another(self: AnswerSignal, step: int) -> SignalAnswered:
    """The answer is recorded for another signal."""
    return SignalAnswered(step, "s-0", self.result, self.failure)


DEAF: dict[str, Bug] = {
    "answered-twice": Bug((), (wrapped("Context._answer", _answers_again),), programs=200),
    "answer-lost": Bug((), (("Context._answer", _answers_nobody),), programs=200),
    "answer-to-another-signal": Bug((), (("AnswerSignal.recorded", _answers_another),), programs=200),
    "value-of-an-entry-that-lost": Bug((), (("agents.newly_exposed", _as_last_time()),), programs=400),
    "signal-taken-twice": Bug(("signal-before-the-run",), (("Mailbox.take", _taken_and_kept),)),
    "equal-waits-share-an-answer": Bug(
        ("signal-twice",), (("decide.take_signal", _for_all), ("Mailbox.take", _taken_and_kept))
    ),
    "signals-without-end": Bug(
        ("signals-overflow",),
        (("waiting.signal_bytes", lambda _: 0), ("mailbox.signal_bytes", lambda _: 0)),
    ),
    "kept-signal-passed-over": Bug(("signals-kept",), (("waiting.find_kept", lambda *_: (None, [])),)),
}
"""By name."""
