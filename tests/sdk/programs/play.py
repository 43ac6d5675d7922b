"""A program under way, told turn by turn; recorded in one process and held against its record in another."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

from refold.core.events import CallCompleted, CallFailed, CallProposed, Failure, SleepEnded
from refold.core.run.intents import Call, GiveUp, Intent, Sleep
from refold.core.run.replay import Moment, Returned, Wanted, replay
from refold.core.run.state import OpenStep, RunState, Settled
from refold.sdk.determinism import watch
from refold.sdk.execution import Execution
from tests.sdk.programs.grammar import main, program
from tests.sdk.programs.parts import World

START_MS = 1_800_000_000_000
MOST_TURNS = 80
PARKED = 24
"""Programs that stand half-way at any time, as they do in a planner; so addresses differ, and runs lie side by side."""


class Turn(NamedTuple):
    """An outcome that was fed, and what followed from it, as a digest. Step 0 is the start."""

    step: int
    fails: bool
    at_ms: int
    told: str


class Difference(Exception):  # noqa: N818 - what is looked for, and no error
    """A program did something else than it did when it was recorded."""


class Play:
    """A program under way. `state` is what a planner would have folded of its history."""

    def __init__(self, seed: int, *, words: bool = False) -> None:
        self.world: World
        self.words = words
        self.open: dict[int, Intent] = {}
        self.state = RunState(f"run-{seed}", started_ms=START_MS)
        self.execution = Execution(self._code(seed), Moment(START_MS), str(seed))

    async def _code(self, seed: int) -> int:
        self.world = World()
        return await main(self.world, program(seed))

    def feed(self, step: int, fails: bool, at_ms: int) -> str:
        """One turn, in words or as a digest of them."""
        self.execution.moment.now_ms = at_ms
        if not step:
            with watch.watching():
                return self._told(self.execution.start())
        outcome = _outcome(step, self.state.steps[step - 1], fails, at_ms)
        if step in self.open:
            del self.open[step]
            self.state.outcomes = self.state.outcomes.add(step, (at_ms, outcome, 0))
        with watch.watching():
            return self._told(self.execution.settle(step, outcome))

    def _told(self, asked: Wanted) -> str:
        """What the program asks for, and where it has come to."""
        lines = []
        for step, intent in asked:
            lines.append(f"{step} {words_of(intent)}")
            if isinstance(intent, GiveUp):
                if self.open.pop(step, None):
                    self.state.given_up = self.state.given_up.set(step, OpenStep("dispatched", step))
                continue
            if intent.waits:
                self.open[step] = intent
            self.state.steps = self.state.steps.append(_recorded(step, intent))
        if self.execution.end:
            self.state.status = "completed"
        lines.append(where(self))
        text = "\n".join(lines)
        return text if self.words else f"{crc32(text.encode()):x}"


def where(play: Play) -> str:
    """Where a program has come to: all that it has done, how it ended, and which tasks wait for nothing."""
    end = play.execution.end
    over = end and (f"returned {end.value}" if isinstance(end, Returned) else f"raised {type(end.error).__name__}")
    unheard = [(name, type(error).__name__) for name, error in play.execution.unheard] if end else []
    return f"trace {play.world.trace} {over} {unheard} {play.execution.waits_for_nothing}"


def words_of(intent: Intent) -> str:
    """An intent, with all that belongs to it."""
    return f"{intent.words} {getattr(intent, 'until_ms', '')}{getattr(intent, 'data', '')}"


def _recorded(step: int, intent: Any) -> Any:
    if isinstance(intent, Call):
        policy = (intent.timeout_ms, intent.retry)
        return CallProposed(step, intent.tool, intent.args, "key", intent.pool, intent.effect, *policy)
    return intent.recorded(step)


def _outcome(step: int, recorded: Any, fails: bool, at_ms: int) -> Settled:
    if not isinstance(recorded, CallProposed):
        return SleepEnded(step)
    return CallFailed(step, 1, Failure("boom", "it broke")) if fails else CallCompleted(step, 1, f"{step} at {at_ms}")


def record(seed: int, *, words: bool = False) -> list[Turn]:
    """Plays a program with outcomes in a random order: timers in theirs, some failures, some two in one entry."""
    chance, play = random.Random(f"outcomes {seed}"), Play(seed, words=words)
    turns = [Turn(0, False, START_MS, play.feed(0, False, START_MS))]
    now, entry = START_MS, list[int]()
    while play.open and not play.execution.end and len(turns) < MOST_TURNS:
        if not entry:  # an entry of the log holds one outcome, or two that were open when it was written
            timers = [(intent.until_ms, step) for step, intent in play.open.items() if isinstance(intent, Sleep)]
            ready = [step for step, intent in play.open.items() if isinstance(intent, Call)]
            ready += [min(timers)[1]] if timers else []
            entry = chance.sample(ready, min(len(ready), 2 if chance.random() < 0.15 else 1))
            now += chance.randrange(400)
        step = entry.pop(0)
        if isinstance(intent := play.open.get(step), Sleep):
            now = max(now, intent.until_ms)
        fails = chance.random() < 0.15
        turns.append(Turn(step, fails, now, play.feed(step, fails, now)))
    play.execution.close()
    return turns


@dataclass
class Checked:
    """What was checked."""

    programs: int = 0
    outcomes: int = 0
    cuts: int = 0


class Checker:
    """Holds programs against their records, among noise. `cuts`: how many prefixes of each; 0 for every one."""

    def __init__(self, cuts: int, *, words: bool = False) -> None:
        self.cuts, self.words = cuts, words
        self.checked = Checked()
        self._chance = random.Random()
        self._parked: list[Play] = []
        self._litter: list[Any] = []

    def check(self, seed: int, turns: list[Turn]) -> None:
        """**Raises** Difference."""
        full, states = Play(seed, words=self.words), list[RunState]()
        places = []
        for number, turn in enumerate(turns):
            self._expect(f"turn {number} of the whole", turn.told, full.feed(*turn[:3]))
            states.append(full.state.copy())
            places.append(where(full))
        self._park(full)
        lengths = range(1, len(turns) + 1)
        chosen = self._chance.sample(lengths, min(self.cuts or len(turns), len(turns)))
        for length in chosen:
            part = Play(seed, words=self.words)
            if self._chance.random() < 0.5:
                for number, turn in enumerate(turns[:length]):
                    self._expect(f"turn {number} of {length}", turn.told, part.feed(*turn[:3]))
            else:
                self._replayed(part, states[:length], turns, places[length - 1])
            self._park(part)
        self.checked.programs += 1
        self.checked.outcomes += len(turns) - 1
        self.checked.cuts += len(chosen)

    def _replayed(self, part: Play, states: list[RunState], turns: list[Turn], place: str) -> None:
        """Fresh code along its history; the last outcomes may have come while it was held, and have no reaction yet."""
        length = len(states)
        fed = [n for n in range(length) if n == 0 or turns[n].step in states[n].outcomes]
        held = min(self._chance.choice((0, 0, 1, 3)), len(fed))
        before = states[fed[-held] - 1] if held and fed[-held] else states[-1]
        state = states[-1].copy()
        if held:
            state.steps = before.steps if fed[-held] else type(state.steps)()
            state.given_up = before.given_up if fed[-held] else RunState("").given_up
            state.status = "running"
        with watch.watching():
            beyond = replay(part.execution, state, held)
        kept = [f"{step} {words_of(i)}" for step, i in beyond if not isinstance(i, GiveUp)]
        new = list(states[-1].steps)[len(state.steps) :]
        self._expect(f"replay of {length}, {held} held: new steps", str(len(new)), str(len(kept)))
        self._expect(f"replay of {length}, {held} held", place, where(part))

    def _expect(self, what: str, recorded: str, now: str) -> None:
        if recorded != now:
            raise Difference(f"{what}\nrecorded: {recorded}\nnow:      {now}")
        self._disturb()

    def _disturb(self) -> None:
        """Whatever may happen in a process between two turns."""
        chance = self._chance.random()
        if chance < 0.05:
            gc.collect(0 if chance < 0.03 else 1 if chance < 0.045 else 2)
        elif chance < 0.3:
            self._litter.append([object() for _ in range(int(chance * 100))] + [bytearray(int(chance * 3_000))])
            if len(self._litter) > 200:
                self._chance.shuffle(self._litter)
                del self._litter[50:]

    def _park(self, play: Play) -> None:
        self._parked.append(play)
        if len(self._parked) > PARKED:
            self._parked.pop(self._chance.randrange(PARKED)).execution.close()

    def leaks(self) -> Iterator[str]:
        """What is left when all is dropped: tasks in the books of asyncio or anyio."""
        while self._parked:
            self._parked.pop().execution.close()
        gc.collect()
        backend = sys.modules["anyio._backends._asyncio"]
        books = {"anyio": backend._task_states, "asyncio": _all_tasks()}
        for name, book in books.items():
            if len(book):
                yield f"{len(book)} tasks are left in the books of {name}"


def _all_tasks() -> Any:
    return getattr(asyncio.tasks, "_scheduled_tasks", None) or getattr(asyncio.tasks, "_all_tasks", ())


def listen() -> list[str]:
    """What the interpreter and asyncio complain of from now on: nothing is to be dropped noisily."""
    heard: list[str] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    logging.getLogger("asyncio").addHandler(Heard())
    sys.unraisablehook = lambda told: heard.append(f"{told.err_msg}: {told.exc_value!r} in {told.object!r}")
    warnings.showwarning = lambda message, *_: heard.append(str(message))
    warnings.simplefilter("always")
    return heard
