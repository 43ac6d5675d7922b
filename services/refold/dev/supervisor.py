"""Named child processes, restarted when they die, and stopped in order."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from refold.core.errors import NotFoundError, RefoldError
from refold.dev import process
from refold.dev.process import Process
from refold.engine.runtime.standby import WELL_AFTER_S, deaths_of, pause_s, serving_pid

Pids = dict[str, list[int]]

_STOP_POLL_S = 0.02
_ALIVE_POLL_S = 0.1
# A standby process reaps its dead children itself, so their deaths are polled.
_FORKED_POLL_S = 0.2
_NO_ROOM_S = 5.0


@dataclass(frozen=True)
class Child:
    """Process to keep alive; several may share a name, and higher ranks stop first."""

    name: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] | None = None
    rank: int = 0
    grace: timedelta = timedelta(seconds=10)


@dataclass(frozen=True)
class Exit:
    """Unexpected end of a child, restarted after `pause`. **Units**: `code` is an exit status or minus a signal."""

    name: str
    pid: int
    code: int
    pause: timedelta


class Slot:
    """Supervised child: its living process, or the time of its next start."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.process: Process | None = None
        self.due: float | None = time.monotonic()
        self.started = threading.Event()
        self.starts = 0
        self._born = 0.0
        self.deaths = self._deaths_seen = self._serving_pid = 0
        self._short_lives = 0

    def start(self, report_end: "Callable[[Slot], None]") -> None:
        """Start the process; another thread calls `report_end` at its end."""
        self.due = None
        try:
            running = process.spawn(self.child.argv, log=self.child.log, env=self.child.env)
        except OSError:  # no room for a log, no memory for a process: that may pass
            self._short_lives += 1
            self.due = time.monotonic() + _NO_ROOM_S
            return
        self.process = running
        self.starts += 1
        self.started.set()
        self._born, self._deaths_seen = time.monotonic(), 0

        def wait_and_report() -> None:
            running.wait()
            report_end(self)

        threading.Thread(target=wait_and_report, name=f"wait-{self.child.name}", daemon=True).start()

    def ended(self) -> Exit | None:
        """Exit of a process that died; also sets the time of its restart."""
        dead = self.process
        if dead is None or dead.poll() is None:
            return None
        # Its descendants may live on, and keep its ports.
        process.kill(dead)
        short = time.monotonic() - self._born < WELL_AFTER_S
        self._short_lives = self._short_lives + 1 if short else 0
        pause = pause_s(self._short_lives)  # a broken service costs a start every few seconds, and not a core
        self.process, self.due = None, time.monotonic() + pause
        return Exit(self.child.name, dead.pid, dead.returncode, timedelta(seconds=pause))

    def went_on(self) -> Exit | None:
        """Exit of a forked process that its standby parent has replaced since the last call; None without one."""
        if not self.lives or self.process is None:
            return None
        before, self._serving_pid = self._serving_pid, serving_pid(self.process.pid)
        count, code = deaths_of(self.process.pid)
        new, self._deaths_seen = count - self._deaths_seen, count
        if new <= 0:
            return None
        self.deaths += new
        return Exit(self.child.name, before, code, timedelta(0))

    def kill(self) -> None:
        """Kill the process with its descendants, and plan no restart."""
        if self.process is not None:
            process.kill(self.process)
        self.process = self.due = None

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None


@dataclass(frozen=True)
class _TakeDown:
    """Request to kill all children of a name and to keep them down."""

    slots: list[Slot]
    done: threading.Event = field(default_factory=threading.Event)


class Supervisor:
    """Keeps children alive, from a thread of its own. `on_change` gets pids by name after every start and end,
    `on_exit` every unexpected end; both on that thread. If one raises, all children are killed, and `stop` raises
    RefoldError."""

    def __init__(
        self, *, on_change: Callable[[Pids], None] = lambda _: None, on_exit: Callable[[Exit], None] = lambda _: None
    ) -> None:
        self._on_change = on_change
        self._on_exit = on_exit
        self._slots: list[Slot] = []
        self._inbox: queue.SimpleQueue[Slot | _TakeDown | None] = queue.SimpleQueue()
        self._hurried = False
        self._reported: Pids = {}
        self._stopped_cleanly = False
        # Linux ends a child with the thread that started it: this one lives as long as the children.
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def add(self, child: Child) -> None:
        """Start a child and keep it alive; its pid is known on return. **Raises** UsageError if its command does not
        exist; OSError for an unwritable log; RefoldError after the end."""
        process.check_command(child.argv)
        child.log.parent.mkdir(parents=True, exist_ok=True)
        # An unwritable log fails here; later, the start would be tried again and again.
        child.log.touch()
        slot = Slot(child)
        self._slots.append(slot)
        self._inbox.put(slot)
        self._wait_for(slot.started)

    def pids(self) -> Pids:
        """Living processes by name; an empty list if all children of a name are down."""
        alive: Pids = {}
        for slot in list(self._slots):
            living, running = alive.setdefault(slot.child.name, []), slot.process
            if running is not None:
                living.append(serving_pid(running.pid))
        return alive

    def restarts(self, name: str) -> int:
        slots = [slot for slot in list(self._slots) if slot.child.name == name]
        return sum(max(0, slot.starts - 1) + slot.deaths for slot in slots)

    def restart(self, names: Sequence[str]) -> None:
        """Stop all children of some names; each is then started again, as after a death."""
        for slot in list(self._slots):
            if slot.child.name in names and (running := slot.process) is not None:
                process.ask(running)

    @contextmanager
    def down(self, name: str) -> Iterator[None]:
        """Kill all children of a name, keep them down during the block, then start them at once. **Raises**
        NotFoundError for an unknown name; RefoldError after the end."""
        slots = [slot for slot in list(self._slots) if slot.child.name == name]
        if not slots:
            raise NotFoundError(f"no process is called {name}", name=name)
        request = _TakeDown(slots)
        self._inbox.put(request)
        self._wait_for(request.done)
        try:
            yield
        finally:
            for slot in slots:
                slot.due = time.monotonic()
                self._inbox.put(slot)

    @property
    def active(self) -> bool:
        """True if children are kept alive: not after `stop`, or after a callback raised."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop all children, highest rank first, within their grace. **Raises** RefoldError if a callback raised."""
        self._inbox.put(None)
        self._thread.join()
        if not self._stopped_cleanly:
            raise RefoldError("supervision broke off", hint="see the traceback on stderr")

    def hurry(self) -> None:
        """Skip all grace periods of a stop, present and future."""
        self._hurried = True

    def _run(self) -> None:
        try:
            while self._handle_next():
                pass
            for rank in sorted({slot.child.rank for slot in self._slots}, reverse=True):
                self._stop_slots([slot for slot in self._slots if slot.child.rank == rank])
            self._stopped_cleanly = True
        finally:
            for slot in self._slots:
                slot.kill()

    def _handle_next(self) -> bool:
        """Start due children, then wait for the next event; False on a stop request."""
        for slot in list(self._slots):
            if slot.due is not None and slot.due <= time.monotonic():
                slot.start(self._inbox.put)
                self._report_pids()
        pauses = [slot.due - time.monotonic() for slot in list(self._slots) if slot.due is not None]
        try:
            message = self._inbox.get(timeout=max(0.0, min([_FORKED_POLL_S, *pauses])))
        except queue.Empty:
            exits = [*filter(None, map(Slot.went_on, list(self._slots)))]
            if self.pids() != self._reported:  # a process in reserve has forked the one that serves
                self._report_pids()
            for gone in exits:
                self._on_exit(gone)
            return True
        if isinstance(message, _TakeDown):
            for slot in message.slots:
                slot.kill()
            self._report_pids()
            message.done.set()
        elif message is not None and (exit_ := message.ended()) is not None:
            self._report_pids()
            self._on_exit(exit_)
        return message is not None

    def _stop_slots(self, slots: list[Slot]) -> None:
        """Stop children together, within their longest grace, then kill the rest."""
        deadline = time.monotonic() + max(slot.child.grace.total_seconds() for slot in slots)
        for slot in slots:
            if slot.process is not None:
                process.ask(slot.process)
        while any(slot.lives for slot in slots) and time.monotonic() < deadline and not self._hurried:
            time.sleep(_STOP_POLL_S)
        for slot in slots:
            slot.kill()

    def _wait_for(self, event: threading.Event) -> None:
        while not event.wait(_ALIVE_POLL_S):
            if not self.active:
                raise RefoldError("the supervisor has stopped")

    def _report_pids(self) -> None:
        self._reported = self.pids()
        self._on_change(self._reported)
