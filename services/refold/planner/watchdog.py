"""Sees which run's code holds the planner, and takes the run away from everybody.

Agent code runs in the planner's loop: `while True: pass` would hold every run of every process in turn, because the
input that wakes it is acknowledged and comes again. So a thread looks on. It has the code interrupted by a signal, and
the planner quarantines the run and goes on. Code that goes on all the same ends the process, when its run has been
quarantined from this thread. Code in C that never gives the interpreter back stops this thread, too: then the process
ends without a name in a quarantine.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import structlog

from refold.core.ids import RunId
from refold.core.messages import Hold
from refold.runtime.clock import clock_ms

EXIT_CODE = 75
"""Of a planner that a run's code held: its supervisor starts it again, and the run is not driven there."""

LOOK_S = 0.1
_LATE_S = 2 * LOOK_S
"""The most that one look counts as waiting: in a longer one this thread stood still, too."""

GIVE_S = 1.0
"""How long code that was interrupted may take to end: it may tidy up, or go on as if nothing had happened."""

MUTE_S = 60.0
"""How long this thread may not get to run (code in C that keeps the interpreter) before the process ends."""

HELD_UP = "its code held the planner without giving it back (REFOLD_PLANNER__HANG_MS)"

STACK = 8_000
"""Characters of a stack in a hold: the innermost frames of any but absurd code."""

_log = structlog.get_logger()


class Driven(NamedTuple):
    """Code of a run that is being run. `needs` is the version that the run began with, `code` what it has here.

    `ends`: who runs it takes a HeldUp that it may raise at any point.
    """

    run_id: RunId
    needs: str
    code: str
    ends: bool = False


_INTERRUPT = signal.SIGUSR1


class HeldUp(BaseException):
    """Agent code has held the planner for too long, and is interrupted."""


class Mark:
    """What the loop of a process is doing, for its watchdog. `doomed`: what is to be interrupted; `stack` is where."""

    def __init__(self) -> None:
        self.driven: Driven | None = None
        self.doomed: Driven | None = None
        self.stack = ""

    def on(self, driven: Driven) -> _On:
        """A `with` block around agent code. **Raises** HeldUp into that code if it does not give the planner back."""
        return _On(self, driven)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """A handler of signals: what is driven ends here, if it is still what was to be interrupted."""
        if self.doomed is not None and self.doomed is self.driven:
            raise HeldUp


class _On:  # a generator would cost each step a microsecond more
    __slots__ = ("_before", "_driven", "_mark")

    def __init__(self, mark: Mark, driven: Driven) -> None:
        self._mark, self._driven, self._before = mark, driven, mark.driven

    def __enter__(self) -> None:
        self._mark.driven = self._driven

    def __exit__(self, *error: object) -> None:
        self._mark.driven = self._before


class Watchdog:
    """A thread beside a planner's loop; to be made in the thread that takes turns.

    `quarantine` makes a hold durable and may raise, `die` ends the process. Code is interrupted by a signal, if the
    thread is the main one (no other runs handlers). **Units**: seconds.
    """

    def __init__(
        self,
        mark: Mark,
        *,
        member: str,
        quarantine: Callable[[Hold], None],
        die: Callable[[int], None],
        warn_s: float = 1.0,
        most_s: float = 5.0,
    ) -> None:
        self._mark, self._member, self._quarantine, self._die = mark, member, quarantine, die
        self._warn_s, self._most_s = warn_s, most_s
        self._loop, self._stat = threading.get_ident(), Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        # Without it (macOS) the time of all threads counts; the others need little.
        clock_of = getattr(time, "pthread_getcpuclockid", None)
        self._clock: int = clock_of(self._loop) if clock_of else time.CLOCK_PROCESS_CPUTIME_ID
        self._stopped = threading.Event()
        self._interrupts = threading.current_thread() is threading.main_thread()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begins to look on."""
        if self._interrupts:
            signal.signal(_INTERRUPT, self._mark.interrupt)
        self._thread.start()

    def stop(self) -> None:
        """Ends it, with the loop."""
        self._stopped.set()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException:  # noqa: BLE001 - without it one run could hold all the others: the process ends with it
            _log.exception("watchdog.broken")
            self._die(EXIT_CODE)

    def _watch(self) -> None:
        # Wall time would take a stopped process and a busy machine for code that hangs: what counts is what the loop's
        # thread has worked, and how long it has waited (for a lock, a socket, a sleep) while this thread ran on time.
        seen, began, waited, warned = None, 0.0, 0.0, False
        before = time.monotonic()
        while not self._stopped.wait(LOOK_S):
            faulthandler.dump_traceback_later(MUTE_S, exit=True)
            driven, now, worked = self._mark.driven, time.monotonic(), time.clock_gettime(self._clock)
            passed, before = min(now - before, _LATE_S), now
            if driven is None or driven is not seen:
                seen, began, waited, warned = driven, worked, 0.0, False
                continue
            waited += passed if self._waits() else 0.0
            held = worked - began + waited
            ends = self._interrupts and driven.ends
            if held >= self._most_s + (GIVE_S if ends else 0.0):
                self._take_away(driven)
                return
            if held >= self._most_s and self._mark.doomed is not driven:
                self._interrupt(driven)
            if held >= self._warn_s and not warned:
                warned = True
                _log.warning("run.slow", run_id=driven.run_id, after_s=self._warn_s, stack=self._stack())
        faulthandler.cancel_dump_traceback_later()

    def _interrupt(self, driven: Driven) -> None:
        stack = self._stack()
        _log.error("run.interrupted", run_id=driven.run_id, stack=stack, hint="refold run retry, refold run fail")
        self._mark.stack, self._mark.doomed = stack, driven
        signal.pthread_kill(self._loop, _INTERRUPT)

    def _take_away(self, driven: Driven) -> None:
        stack = self._stack()
        hold = Hold(
            run_id=driven.run_id,
            kind="quarantined",
            reason="hang",
            message=HELD_UP,
            detail=stack,
            needs=driven.needs,
            code=driven.code,
            member=self._member,
            at_ms=clock_ms(),
        )
        try:
            self._quarantine(hold)
            _log.error("run.quarantined", run_id=driven.run_id, stack=stack, hint="refold run retry, refold run fail")
        except BaseException:  # noqa: BLE001 - whatever it is, the process that is held has to end
            # The process ends all the same: others go on sooner, and the next planner that it holds tries again.
            _log.exception("run.quarantine_failed", run_id=driven.run_id, stack=stack)
        finally:
            self._die(EXIT_CODE)

    def _waits(self) -> bool:
        """True if the loop's thread waits for something else than a processor. Unknown where there is no /proc."""
        try:
            return self._stat.read_text().rpartition(")")[2].split()[0] in ("S", "D")
        except OSError:
            return False

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop)
        return "".join(traceback.format_stack(frame))[-STACK:] if frame else ""
