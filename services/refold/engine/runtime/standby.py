"""Hot standby: a process with all imports and no clients, which forks the service, and forks it again when it dies.
Both end together: Linux kills the child with its parent, and the parent ends when its child ended on purpose."""

import ctypes
import gc
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import structlog

RESERVE = "standby"
"""Name of the waiting process in `ps`, followed by the number of dead children and the last exit code."""

WELL_AFTER_S = 2.0
"""Life of a healthy child; shorter lives in a row are a crash loop, with doubling pauses."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_STOPS = (signal.SIGTERM, signal.SIGINT)
_ON_PURPOSE = (0, 2)
"""Exit codes after which a restart would end alike: stopped, or used wrongly."""

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15

log = structlog.get_logger()


def pause_s(short_lives: int) -> float:
    """Seconds before the next start, after this many short lives in a row."""
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (short_lives - 2)) if short_lives > 1 else 0.0


def stand_by() -> None:
    """Return in a child, which serves; the parent stays, and forks the next child when one dies. Returns at once, in
    this process, where it cannot fork: not on Linux, or with threads of the app."""
    if sys.platform != "linux":
        log.warning("standby.impossible", reason="it needs Linux")
    elif len([*Path("/proc/self/task").iterdir()]) > 1:
        log.warning("standby.impossible", reason="the app has started threads", hint="start them in tools")
    else:
        _Parent().serve()


def serving_pid(pid: int) -> int:
    """Pid that serves: the child of a standby process, else `pid`."""
    with suppress(OSError, ValueError, IndexError):  # between a death and the next fork there is no child
        if Path(f"/proc/{pid}/comm").read_text().startswith(RESERVE):
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return pid


def reserve_of(pid: int) -> int:
    """Pid of the standby process of one that serves, else `pid`."""
    with suppress(OSError, ValueError, IndexError):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if Path(f"/proc/{parent}/comm").read_text().startswith(RESERVE):
            return parent
    return pid


def deaths_of(pid: int) -> tuple[int, int]:
    """Number of dead children of a standby process, and the last exit code; (0, 0) for any other."""
    with suppress(OSError, ValueError):
        name, number, code = Path(f"/proc/{pid}/comm").read_text().split()
        return (int(number), int(code)) if name == RESERVE else (0, 0)
    return 0, 0


class _Parent:
    def __init__(self) -> None:
        self._child = self._asked = 0
        self._before = {number: signal.signal(number, self._ask) for number in _STOPS}

    def serve(self) -> None:
        parent, deaths, code, short_lives = os.getpid(), 0, 0, 0
        gc.collect()
        gc.freeze()  # shared pages stay shared
        while not self._asked:
            _control(_PR_SET_NAME, f"{RESERVE} {deaths} {code}".encode())
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # now it would be lost, or reach a half-made child
            born, self._child = time.monotonic(), os.fork()
            if self._child == 0:
                self._begin(parent)
                return
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            code = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
            dead, self._child = self._child, 0
            if self._asked or code in _ON_PURPOSE:
                sys.exit(max(code, 0))
            deaths, short_lives = deaths + 1, short_lives + 1 if time.monotonic() - born < WELL_AFTER_S else 0
            until = time.monotonic() + (pause := pause_s(short_lives))
            log.warning("service.died", pid=dead, code=code, next_in_s=pause)
            while not self._asked and (left := until - time.monotonic()) > 0:
                time.sleep(left)
        sys.exit(0)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = number
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, number)

    def _begin(self, parent: int) -> None:
        _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the request
            os._exit(1)
        _control(_PR_SET_NAME, b"refold")
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


def _control(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None).prctl(option, value)
