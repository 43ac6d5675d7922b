"""Watchdog of a thread that runs code of users."""

import faulthandler
import gc
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import structlog

from refold.core.ids import RunId

EXIT_CODE = 75
"""Exit code of a process that code of users blocked, so that its supervisor restarts it."""

LOOK_S = 0.1
_LATE_S = 2 * LOOK_S
"""Longest wait that one look counts: in a longer one this thread stood still, too."""

GIVE_S = 1.0
"""Time for interrupted code to tidy up and end."""

MUTE_S = 60.0
"""Longest time without this thread running (C code may keep the interpreter) before the process ends."""

STACK = 8_000
"""Characters of a stack: its innermost frames."""

_log = structlog.get_logger()


class Driven(NamedTuple):
    """Running code of a run, or of a projection that applies it; `needs` is a run's version, `code` the one here.
    `ends`: the caller handles HeldUp anywhere."""

    run_id: RunId
    needs: str
    code: str
    ends: bool = False


_INTERRUPT = signal.SIGUSR1


class HeldUp(BaseException):
    """Interrupt of code that has blocked its thread for too long."""


class Mark:
    """Current work of a thread, for its watchdog; `doomed` code is to be interrupted, but not while `shielded`."""

    def __init__(self) -> None:
        self.driven: Driven | None = None
        self.doomed: Driven | None = None
        self.stack = ""
        self.shielded = False

    def on(self, driven: Driven) -> "_MarkedBlock":
        """A `with` block around code of users. **Raises** HeldUp into code that blocks the thread."""
        return _MarkedBlock(self, driven)

    def interrupt(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Signal handler: interrupt the doomed code, if it still runs."""
        if self.doomed is not None and self.doomed is self.driven and not self.shielded:
            raise HeldUp("it has held its process for too long")

    def starved(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: doom code that has kept the interpreter, so that its watchdog could not run."""
        if self.driven is not None and self.driven.ends and self.doomed is not self.driven:
            self.stack, self.doomed = "".join(traceback.format_stack(frame))[-STACK:], self.driven
        self.interrupt()

    @contextmanager
    def shield(self) -> Iterator[None]:
        """A block of ours within code of users. **Raises** HeldUp at its end."""
        # An answer of a database that is half read would leave the connection unusable.
        self.shielded = True
        try:
            yield
        finally:
            self.shielded = False
            self.interrupt()


class _MarkedBlock:  # a generator would cost each step a microsecond more
    __slots__ = ("_before", "_driven", "_mark")

    def __init__(self, mark: Mark, driven: Driven) -> None:
        self._mark, self._driven, self._before = mark, driven, mark.driven

    def __enter__(self) -> None:
        self._mark.driven = self._driven

    def __exit__(self, *error: object) -> None:
        self._mark.driven = self._before


class Watchdog:
    """Thread that interrupts code which blocks its creator. `give_up` gets code that goes on all the same, and its
    stack, before `die` ends the process. **Units**: seconds."""

    def __init__(
        self,
        mark: Mark,
        *,
        hint: str,
        give_up: Callable[[Driven, str], object],
        die: Callable[[int], None],
        warn_s: float = 1.0,
        most_s: float = 5.0,
    ) -> None:
        self._mark, self._hint, self._give_up, self._die = mark, hint, give_up, die
        self._warn_s, self._most_s = warn_s, most_s
        self._loop, self._stat = threading.get_ident(), Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        # Without it (macOS) the time of all threads counts; the others need little.
        clock_of = getattr(time, "pthread_getcpuclockid", None)
        self._clock: int = clock_of(self._loop) if clock_of else time.CLOCK_PROCESS_CPUTIME_ID
        self._collector: _MarkedBlock | None = None
        self._armed_s = 0.0
        self._stopped = threading.Event()
        # Python runs signal handlers in the main thread only.
        self._interrupts = threading.current_thread() is threading.main_thread()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        if self._interrupts:
            signal.signal(_INTERRUPT, self._mark.interrupt)
            signal.signal(signal.SIGPROF, self._starved)
        gc.callbacks.append(self._mark_collection)
        self._arm()
        self._thread.start()

    def stop(self) -> None:
        gc.callbacks.remove(self._mark_collection)
        self._stopped.set()
        self._thread.join(timeout=2)

    def _arm(self) -> None:
        # Code in C may keep the interpreter from this thread. A pattern that backtracks handles signals all the same.
        faulthandler.dump_traceback_later(MUTE_S, exit=True)
        if self._interrupts:
            self._armed_s = time.clock_gettime(self._clock)
            signal.setitimer(signal.ITIMER_PROF, self._most_s + GIVE_S)

    def _starved(self, number: int, frame: FrameType | None) -> None:
        # The timer counts all threads: a tool beside the planner may have kept the interpreter.
        if time.clock_gettime(self._clock) - self._armed_s >= self._most_s:
            self._mark.starved(number, frame)

    def _mark_collection(self, phase: str, info: object) -> None:
        # A collector runs `__del__` of user code, of no run that could be named here.
        if threading.get_ident() != self._loop:
            return
        if phase == "start":
            self._collector = self._mark.on(Driven(RunId(""), "", ""))
            self._collector.__enter__()
        elif self._collector is not None:
            self._collector.__exit__()

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException:  # noqa: BLE001 - without it one run could block all others: the process ends with it
            _log.exception("watchdog.broken")
            self._die(EXIT_CODE)

    def _watch(self) -> None:
        # Wall time would count a stopped process and a busy machine as hanging code. Counted are the work of the loop's
        # thread, and its waits (for a lock, a socket, a sleep) while this thread ran on time.
        watched, before = None, time.monotonic()
        while not self._stopped.wait(LOOK_S):
            self._arm()
            driven, now, worked = self._mark.driven, time.monotonic(), time.clock_gettime(self._clock)
            passed, before = min(now - before, _LATE_S), now
            if driven is None or driven is not watched:
                watched, began, waited, limit_s, warned, interrupted = driven, worked, 0.0, self._most_s, False, False
                continue
            waited += passed if self._is_waiting() and not self._mark.shielded else 0.0
            elapsed = worked - began + waited
            if elapsed >= limit_s:
                if interrupted or not (self._interrupts and driven.ends):
                    self._end_process(driven)
                    return
                # C code may have kept this thread from running until long after the limit.
                limit_s, interrupted = elapsed + GIVE_S, True
                if self._mark.doomed is not driven:
                    self._interrupt(driven)
            if elapsed >= self._warn_s and not warned:
                warned = True
                _log.warning(
                    "code.slow", run_id=driven.run_id, code=driven.code, after_s=self._warn_s, stack=self._stack()
                )
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _interrupt(self, driven: Driven) -> None:
        stack = self._stack()
        _log.error("code.interrupted", run_id=driven.run_id, code=driven.code, stack=stack, hint=self._hint)
        self._mark.stack, self._mark.doomed = stack, driven
        signal.pthread_kill(self._loop, _INTERRUPT)

    def _end_process(self, driven: Driven) -> None:
        stack = self._stack()
        try:
            if driven.run_id:
                self._give_up(driven, stack)
            _log.error("code.hangs", run_id=driven.run_id, code=driven.code, stack=stack, hint=self._hint)
        except BaseException:  # noqa: BLE001 - in any case the blocked process has to end
            _log.exception("code.hangs", run_id=driven.run_id, code=driven.code, stack=stack)
        finally:
            self._die(EXIT_CODE)

    def _is_waiting(self) -> bool:
        """True if the loop's thread sleeps or waits for a disk; False without /proc."""
        try:
            return self._stat.read_text().rpartition(")")[2].split()[0] in ("S", "D")
        except OSError:
            return False

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop)
        return "".join(traceback.format_stack(frame))[-STACK:] if frame else ""
