"""What operators do to a platform at work: restart all of it, scale it, deploy to it, lose its offsets and its time."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from refold.dev import process
from refold.dev.supervisor import Supervisor
from tests.chaos.groups import GROUPS, committed, forget
from tests.chaos.stack import PREFIX, Stack, command
from tests.waiting import eventually

Note = Callable[[str, str, float, str], None]

HOLD_S = 4.0, 8.0
"""How long a number of planners, or a wrong deploy, lasts."""

MEMBERS = "members"
"""What changes who is in a group does not mix: only one at a time keeps a process down."""

BACK_S = 90.0
MORE = ("planner-3", "planner-4")
LESS = "planner-2"
CODES = ("reordered", "raising", "broken")
"""Wrong deploys: an agent that asks for other things, one that raises where it did not, an app that does not load."""

SKEWS_MS = (-86_400_000, -3_600_000, -30_000, 30_000, 3_600_000, 86_400_000)


class Operations:
    """Things that take a while, one of each kind at a time. `live` names the runs that are under way.

    `failures` is what did not become what it should.
    """

    def __init__(self, stack: Stack, note: Note, live: Callable[[], list[str]], *, seed: int) -> None:
        self._stack, self._note, self._live = stack, note, live
        self._random = random.Random(seed)
        self._threads: dict[str, threading.Thread] = {}
        self.failures: list[str] = []

    def scale(self) -> None:
        """Two planners, then four, then one, then two, as one would under a changing load; others go on meanwhile."""
        self._begin(MEMBERS, self._scale)

    def forget(self, kind: str) -> None:
        """All members of a group leave, it is deleted with its offsets, and they are back."""
        self._begin(MEMBERS, lambda: self._forget(kind))

    def deploy(self) -> None:
        """Other code for the runs that are under way, and back."""
        code = self._random.choice(CODES)
        self._begin("deploy", lambda: self._deploy(code))

    def skew(self, name: str) -> None:
        """A process gets a wall clock that is wrong from its next start on, which is now."""
        by_ms = self._random.choice(SKEWS_MS)
        self._stack.clock(name).write_text(str(by_ms))
        at = time.monotonic()
        told = self._restart(name)
        self._note("skew", name, at, f"{told}, its clock is {by_ms / 1000:+.0f} s")

    def roll(self) -> None:
        """A clean restart of everything there is, one after the other; others go on meanwhile."""
        self._begin("roll", self._roll)

    @property
    def rolling(self) -> bool:
        """Whether such a restart is under way."""
        return "roll" in self._threads and self._threads["roll"].is_alive()

    def _roll(self) -> None:
        for name in (*self._stack.servers, *self._stack.names):
            at = time.monotonic()
            told = self._restart(name)
            if name.startswith("broker"):
                eventually(self._stack.whole, within=BACK_S, what="all brokers are there")
            self._note("roll", name, at, told)

    def finish(self) -> None:
        """Waits until all of it is over."""
        for thread in self._threads.values():
            thread.join()

    def _begin(self, kind: str, work: Callable[[], None]) -> None:
        running = self._threads.get(kind)
        if running is None or not running.is_alive():
            self._threads[kind] = threading.Thread(target=self._try, args=(work,), name=kind, daemon=True)
            self._threads[kind].start()

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except AssertionError as error:  # the rest is judged too
            self.failures.append(f"{threading.current_thread().name}: {error}")

    def _restart(self, name: str) -> str:
        """Asks a process to end; its supervisor starts it again."""
        pid = eventually(lambda: self._stack.pid(name), within=BACK_S, what=f"{name} lives")
        ask_to_end(pid)
        fresh = eventually(lambda: self._other(name, pid), within=BACK_S, what=f"{name} is back")
        return f"pid {pid} was asked to end, now {fresh}"

    def _other(self, name: str, pid: int) -> int | None:
        now = self._stack.pid(name)
        return now if now != pid else None

    def _scale(self) -> None:
        at, pause = time.monotonic(), threading.Event()
        environment = {**os.environ, **self._stack.addresses(), "PYTHONUNBUFFERED": "1"}
        # This thread lasts as long as they do: a process dies with the thread that started it.
        more = [
            process.spawn(
                command(name),
                log=self._stack.folder / "logs" / f"{name}.log",
                env={**environment, **self._stack.environment_of(name)},
            )
            for name in MORE
        ]
        pause.wait(self._random.uniform(*HOLD_S))
        alive = sum(each.poll() is None for each in more)
        with ExitStack() as less:
            self._leave(less, LESS)
            for each in more:
                process.end(each, grace=self._stack.grace)
            pause.wait(self._random.uniform(*HOLD_S))
        self._note("scale", "planner", at, f"{alive} more ran, then all but one were gone")

    def _forget(self, kind: str) -> None:
        at, kafka = time.monotonic(), self._stack.dev.kafka
        group, topic = (f"{PREFIX}{name}" for name in GROUPS[kind])
        had = eventually(lambda: committed(kafka, group, topic), within=BACK_S, what=f"{group} has read something")
        with ExitStack() as nobody:
            for name in self._stack.names:
                if name.startswith(kind):
                    self._leave(nobody, name)
            assert forget(kafka, group, within=BACK_S), f"{group} is still there"
            eventually(lambda: committed(kafka, group, topic) == 0, within=BACK_S, what=f"{group} has read nothing")
        self._note("forget", kind, at, f"{had} offsets of {group} were there, and none when its members came back")

    def _leave(self, less: ExitStack, name: str) -> None:
        """Asks a process to end, and keeps it down."""
        pid = self._stack.pid(name)
        if pid:
            ask_to_end(pid)
            eventually(lambda: self._stack.pid(name) != pid, within=BACK_S, what=f"{name} ends")
        supervisor: Supervisor = self._stack.dev.supervisor
        less.enter_context(supervisor.down(name))

    def _deploy(self, code: str) -> None:
        at, runs = time.monotonic(), self._live()
        planners = [name for name in self._stack.names if name.startswith("planner")]
        self._stack.deployed.write_text(json.dumps({"code": code, "runs": runs}))
        for name in planners:
            self._restart(name)
        threading.Event().wait(self._random.uniform(*HOLD_S))
        self._stack.deployed.write_text("{}")
        for name in planners:
            self._restart(name)
        self._note("deploy", "planner", at, f"{code} for {len(runs)} runs under way, and back")


def ask_to_end(pid: int) -> None:
    """Asks a process to end, even one that is held; nothing if it is gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
