"""What a run of a program has to have done, by its history and plain asyncio: nothing else decides here.

The history says in which order what came of things. Told the same in the same order, plain asyncio has to ask for the
same, wait for the same at the end of every entry, and come to the same end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from refold.core.errors import CallbackError, CallFailed, ChildFailed, RefoldError
from tests.simulator.programs.perform import perform
from tests.simulator.programs.plain import Arguments, Key, Plain, came
from tests.simulator.reading.values import Datum

_UNSENT = ("policy_changed", "tool_changed", "decision_revoked", "decision_expired", "halted")
"""Why an executor sends a call back that it has not begun: that is no try of it."""

ENDS = ("RunCompleted", "RunFailed", "RunCancelled")


def differences(run: str, tree: Any, entries: list[Datum], arguments: Arguments = lambda _, n: {"n": n}) -> list[str]:
    """Everything in which the history of a run differs from what its program does on plain asyncio."""
    judge = _Judge(run, lambda: Plain(lambda ctx: perform(ctx, tree), arguments))
    try:
        for entry in entries:
            judge.follow(entry)
            if judge.wrong:
                break
    finally:
        judge.close()
    return judge.wrong


class _Life:
    """What the log has of a run since it began, or as much of that as a retry has left."""

    def __init__(self) -> None:
        self.started_ms = 0
        self.steps: dict[int, Key] = {}
        self.outcomes: list[tuple[int, str, Datum, int]] = []
        self.newest: int = 0

    def left(self, event: Datum) -> _Life:
        """What stays of it when it is retried: the steps before one, and what came of them, but for some."""
        first, again = event["from_step"] or self.newest + 1, event["again"]
        life = _Life()
        life.started_ms = self.started_ms
        life.steps = {step: key for step, key in self.steps.items() if step < first}
        life.newest = max(life.steps, default=0)
        life.outcomes = [each for each in self.outcomes if each[0] < first and each[0] not in again]
        return life


class _Judge:
    def __init__(self, run: str, begin: Callable[[], Plain]) -> None:
        self._run, self._begin = run, begin
        self._plain, self._life = begin(), _Life()
        self._book = self._plain.book
        self._again: set[int] | None = None  # in the entry of a retry: what had been given up before
        self._attempts: dict[int, int] = {}
        self._numbered: set[int] = set()
        self.wrong: list[str] = []
        self._signals: dict[str, Datum] = {}
        self._over = False
        self._tries: dict[int, int] = {}
        self._doubts: set[int] = set()
        self._left: set[int] = set()
        self._values: dict[str, str] = {}
        self._woken = False  # the code has run since an entry was at rest

    def close(self) -> None:
        """Nobody asks it any more."""
        self._plain.close()

    def follow(self, entry: Datum) -> None:
        """Takes the next entry."""
        if not self._over:  # what lets it go on leaves behind what the entry has that ended it
            self._life.newest = max(self._life.steps, default=0)
        for kind, event in entry["events"]:
            self._event(kind.rpartition(".")[2], event, entry["at_ms"])
            if self.wrong or self._over:
                return
        if not entry["held"]:
            self._at_rest(entry["seq"])

    def _event(self, kind: str, event: Datum, at_ms: int) -> None:
        if kind == "RunStarted":
            self._woken, self._life.started_ms = True, at_ms
            self._plain.start(at_ms)
        elif kind == "RunRetried":
            self._retried(event)
        elif kind == "CallRenewed":
            self._tries[event["step"]] = self._attempts[event["step"]]
            self._doubts.discard(event["step"])
        elif kind == "SignalReceived":
            self._signals[event["signal_id"]] = event
        elif kind == "StatusSet":
            self._values[event["name"]] = event["text"]
        elif kind in _ASKED:
            self._asked(kind, event)
        elif kind == "StepGivenUp":
            self._given_up(event["step"])
        elif kind in _OUTCOMES:
            self._settled(kind, event, at_ms)
        elif kind in ("CallDispatched", "AttemptFailed", "CallDoubted", "DoubtResolved"):
            self._tried(kind, event)
        elif kind in ENDS:
            self._ended(kind, event)

    def _at_rest(self, seq: int) -> None:
        """An entry is over: all that was asked for is in the log, and nobody has let go of what the log has open."""
        place = f"after the entry at seq {seq}"
        for ask in self._book.asked:
            self._object("missing", f"asks for {ask.key} {place}, and the log has no such step")
        still = self._book.left & (self._again or set())  # those were given up before, too, and may be so still
        self._book.left -= still
        self._left |= still
        for step in sorted(self._book.left):
            self._object("open", f"waits no longer for step {step} {place}, and the log does")
        if self._plain.end is not None:
            self._object("endless", f"is over {place}, and the log goes on")
        self._exposed(place)
        self._again = None

    def _exposed(self, place: str) -> None:
        """What readers see is what the program exposed last, once its code has run."""
        shown = {name: text for name, text in self._values.items() if text}
        if self._woken and shown != self._book.values:
            self._object("values", f"exposes {self._book.values} {place}, and the log has {shown}")
        self._woken = False

    def _asked(self, kind: str, event: Datum) -> None:
        key = _ASKED[kind](event)
        if key[:2] in [other[:2] for other in self._life.steps.values() if key[0] == "reply"]:
            self._object("answered twice", f"answers signal {key[1]} once, and step {event['step']} is another answer")
        self._life.steps[event["step"]] = key
        if not self._book.number(event["step"], key, late=self._again is not None):
            asked = [ask.key for ask in self._book.asked]
            self._object("invented", f"asks for {asked}, and step {event['step']} is {key}")
        if kind == "CallProposed":
            self._tries[event["step"]] = self._attempts[event["step"]] = event["retry"]["attempts"]

    def _given_up(self, step: int) -> None:
        if step not in self._book.left:
            self._object("given up", f"waits for step {step}, which is given up")
        self._book.left.discard(step)
        self._left.add(step)

    def _settled(self, kind: str, event: Datum, at_ms: int) -> None:
        step, self._woken = event["step"], True
        self._life.outcomes.append((step, kind, event, at_ms))
        if step in self._book.open:
            self._plain.settle(step, partial(self._outcome, kind, event), at_ms)
        elif step in self._book.left:
            self._book.left.discard(step)  # it has come to its end in this very entry
        elif step not in self._doubts & self._left:  # people still say what came of a call that was in doubt
            self._object("late", f"does not wait for step {step}, and has the outcome {kind}")

    def _retried(self, event: Datum) -> None:
        """The program begins once more, and comes to where the log has it by what stays of that."""
        self._plain.close()
        self._plain, self._life, self._over = self._begin(), self._life.left(event), False
        self._woken = False  # what it exposes by now is in the log when its code has run again
        self._book, self._again = self._plain.book, self._left | (self._again or set())
        self._left.clear()
        self._numbered.clear()
        if not self._life.started_ms:
            return
        self._plain.start(self._life.started_ms)
        self._number()
        for step, kind, outcome, at_ms in self._life.outcomes:
            if step in self._book.open:
                self._plain.settle(step, partial(self._outcome, kind, outcome), at_ms)
                self._number()
        self._book.left -= {step for step, *_ in self._life.outcomes}

    def _number(self) -> None:
        """What was asked for before has its number."""
        for step in sorted(self._life.steps.keys() - self._numbered):
            if self._book.number(step, self._life.steps[step], late=True):
                self._numbered.add(step)

    def _tried(self, kind: str, event: Datum) -> None:
        step, attempt = event["step"], event["attempt"]
        if kind == "CallDoubted":
            self._doubts.add(step)
        elif kind == "DoubtResolved":
            self._tries[step] = max(self._tries[step], attempt) + (event["verdict"] == "did_not_happen")
        elif kind == "AttemptFailed":
            self._tries[step] += event["failure"]["code"] in _UNSENT
        elif attempt > self._tries[step]:
            self._object("tries", f"may try step {step} {self._tries[step]} times, and this is attempt {attempt}")
        elif step in self._left and step not in self._doubts:
            self._object("late", f"does not wait for step {step}, and it is tried again")

    def _ended(self, kind: str, event: Datum) -> None:
        self._over, end = True, self._plain.end
        if kind == "RunCancelled":
            return
        if end is None:
            self._object("end", f"goes on, and the log has {kind} {event}")
        # Until Python 3.13 a TaskGroup that has failed may leave its task cancelled for the next timeout around it.
        elif error := asyncio.CancelledError() if end.cancelled() else end.exception():
            code = error.fields.get("code", error.code) if isinstance(error, RefoldError) else type(error).__name__
            if kind != "RunFailed" or event["failure"]["code"] != code:
                self._object("end", f"fails with {code}, and the log has {kind} {event}")
        elif kind != "RunCompleted" or json.loads(event["result"]) != end.result():
            self._object("end", f"gives {json.dumps(end.result())}, and the log has {kind} {event}")
        for ask in self._book.asked:
            if ask.key[0] == "reply" and not ask.left:
                self._object("missing", f"answers signal {ask.key[1]} at its end, and the log has no answer")
        if not self.wrong:
            self._exposed("at its end")

    def _outcome(self, kind: str, event: Datum) -> Any:
        """What the program is to get for it; raises what it is to see."""
        if kind == "CallCompleted":
            return json.loads(event["result"])
        if kind == "WaitEnded":
            found = self._signals[event["signal_id"]]
            return came(event["signal_id"], json.loads(found["data"]))
        if kind == "CallbackCompleted":
            return json.loads(event["result"])
        if kind == "ChildCompleted":
            if event["status"] == "completed":
                return json.loads(event["result"])
            code = event["failure"]["code"] if event["failure"] else event["status"]
            raise ChildFailed("a child", run_id="", code=code, message="")
        if kind == "CallFailed":
            raise CallFailed("a call", code=event["failure"]["code"])
        if kind == "CallbackFailed":
            raise CallbackError("a callback")
        if kind == "WaitExpired":
            raise TimeoutError
        return None

    def _object(self, what: str, why: str) -> None:
        self.wrong.append(f"program: {what}: run {self._run} on plain asyncio {why}")


def _child(event: Datum) -> Key:
    return "child", event["agent"], json.loads(event["input"]), event["outlives"]


_ASKED: dict[str, Callable[[Datum], Key]] = {
    "CallProposed": lambda event: ("call", event["tool"], json.loads(event["args"])),
    "SleepStarted": lambda event: ("sleep", event["until_ms"]),
    "WaitStarted": lambda event: ("wait", event["name"], event["match"], event["until_ms"]),
    "CallbackCreated": lambda event: ("answer", event["name"], event["until_ms"]),
    "ChildStarted": _child,
    "NoteRecorded": lambda event: ("note", event["kind"], json.loads(event["data"])),
    "CheckpointReached": lambda event: ("checkpoint", event["name"]),
    "SignalAnswered": lambda event: ("reply", event["signal_id"], json.loads(event["result"])),
    "EventPublished": lambda event: ("publish", event["name"], json.loads(event["data"])),
}
_OUTCOMES = (
    *("CallCompleted", "CallFailed", "SleepEnded", "WaitEnded", "WaitExpired"),
    *("CallbackCompleted", "CallbackFailed", "ChildCompleted"),
)


def programs_in(entries: Iterator[Datum]) -> dict[str, tuple[Any, list[Datum]]]:
    """The runs of programs among entries that count: their trees, and their entries in order."""
    found: dict[str, tuple[Any, list[Datum]]] = {}
    for entry in entries:
        run, (kind, first) = entry["run_id"], entry["events"][0]
        if kind.endswith("RunRequested") and first["agent"] == "program":
            found[run] = json.loads(first["input"])["tree"], []
        if run in found:
            found[run][1].append(entry)
    return found
