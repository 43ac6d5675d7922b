"""What is done to the processes, and the proof that it was done."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from redis import Redis, RedisError

from refold.dev.process import Process
from refold.dev.supervisor import Exit
from tests.chaos.human import Human
from tests.chaos.operations import Operations
from tests.chaos.stack import SESSION_MS, Stack
from tests.embedded.wiping import wipe_valkey
from tests.waiting import eventually

STOP_S = (SESSION_MS / 1000 + 1, SESSION_MS / 1000 + 4)
MARK = "chaos-was-here"
BACK_S = 60.0
"""How long a killed process may take to be there again. A broker under load needs 10 s, the rest 1."""

RASH = 0.1
"""How many victims are struck though they, or the brokers, are not back at work: on a busy machine nothing else would
ever happen to them."""

WAIT_S = 20.0
"""How long a victim is waited for."""

# Kind, victims, weight.
KINDS = (
    ("kill", "planner", 18),
    ("kill", "executor", 24),
    ("kill", "broker", 5),
    ("kill", "valkey", 10),
    ("wipe", "valkey", 8),
    ("stop", "planner", 9),
    ("stop", "executor", 9),
    ("kill", "approval", 14),
    ("stop", "approval", 6),
    ("kill", "leader", 6),
    ("stop", "broker", 4),
    ("scale", "planner", 3),
    ("deploy", "planner", 3),
    ("skew", "", 6),
    ("forget", "planner", 3),
    ("forget", "executor", 3),
    ("roll", "everything", 1),
)

OPERATIONS = ("scale", "deploy", "skew", "forget", "roll")


@dataclass(slots=True)
class Fault:
    """A fault that was shown to have happened: `proof` says by what.

    **Units**: `at` in seconds on the monotonic clock; `back_s` until the process was there again (or went on),
    `outcome_s` until the next run came to its end.
    """

    kind: str
    victim: str
    at: float
    proof: str
    back_s: float
    outcome_s: float = 0.0


class Saboteur:
    """Does things to a stack. Stops go on in threads of their own, so that other faults fall into them."""

    def __init__(self, stack: Stack, human: Human, *, seed: int, without: Collection[str] = ()) -> None:
        self._stack, self._human = stack, human
        self._random = random.Random(seed)
        self._kinds = [(kind, victim, weight) for kind, victim, weight in KINDS if kind not in without]
        self._operations = Operations(stack, self._note, human.live, seed=seed)
        self.faults: list[Fault] = []
        self._failures: list[str] = []
        self._stopped: dict[str, threading.Thread] = {}
        self._lock, self._moment = threading.Lock(), threading.Event()

    @property
    def failures(self) -> list[str]:
        """What was to happen and did not, or what did not come back."""
        return [*self._failures, *self._operations.failures]

    def strike(self) -> None:
        """One fault at random."""
        kinds, weights = [(kind, victim) for kind, victim, _ in self._kinds], [weight for *_, weight in self._kinds]
        kind, victim = self._random.choices(kinds, weights)[0]
        try:
            self.do(kind, victim)
        except AssertionError as error:  # something is not as it should be after a fault: the rest is judged too
            self._failures.append(f"{kind} {victim}: {error}")

    def do(self, kind: str, victim: str) -> None:
        """One fault of a kind; a victim without a number is one of that name, `leader` the broker that leads some
        partition of the run log. Valkey dies in place of one that there is not.
        """
        victim = self._stack.leader(self._random.randrange(4)) or "broker" if victim == "leader" else victim
        rash = self._random.random() < RASH
        free = self._free(kind, victim, rash=rash)
        deadline = time.monotonic() + WAIT_S
        while not free and not victim.startswith("broker") and time.monotonic() < deadline:
            self._moment.wait(0.1)
            free = self._free(kind, victim, rash=rash)
        if kind in OPERATIONS:
            self._operate(kind, victim, free)
        elif kind == "wipe":
            self._wipe()
        elif not free:
            self._kill("valkey")
        elif kind == "stop":
            self._stop(self._random.choice(free))
        else:
            self._kill(self._random.choice(free))

    def _free(self, kind: str, victim: str, *, rash: bool) -> list[str]:
        """Who of this name may be struck: who is not held and, unless one is rash, back at work since the last time.

        Nothing is done to a broker while another is held or all are restarted in turn, and a lone one is never held:
        nothing would go on.
        """
        if kind in ("deploy", "scale", "forget", "roll"):
            return [victim]
        named = [name for name in (*self._stack.names, *self._stack.servers) if name.startswith(victim)]
        held = [name for name in named if name in self._stopped]
        free = [name for name in named if name not in held and self._stack.pid(name)]
        if victim.startswith("broker"):
            spared = held or self._operations.rolling or (kind == "stop" and len(named) == 1)
            return [] if spared or not (rash or self._stack.whole()) else free
        if kind == "skew":
            free = [name for name in free if name in self._stack.names]
        return [name for name in free if rash or name not in self._stack.names or self._stack.works(name)]

    def pause(self, between: tuple[float, float]) -> float:
        """The seconds until the next fault."""
        return self._random.uniform(*between)

    def finish(self) -> None:
        """Waits until everything that was stopped goes on again, and operators have done what they were at."""
        self._operations.finish()
        for thread in list(self._stopped.values()):
            thread.join()

    def _operate(self, kind: str, victim: str, free: list[str]) -> None:
        if kind == "skew" and free:
            self._operations.skew(self._random.choice(free))
        elif kind == "forget":
            self._operations.forget(victim)
        elif kind != "skew":
            {"scale": self._operations.scale, "deploy": self._operations.deploy, "roll": self._operations.roll}[kind]()

    def _kill(self, name: str) -> None:
        pid = eventually(lambda: self._stack.pid(name), within=BACK_S, what=f"{name} lives")
        at, before = time.monotonic(), len(self._stack.exits)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        died = eventually(lambda: exit_of(self._stack.exits[before:], name, pid), within=BACK_S, what=f"{name} dies")
        fresh = eventually(lambda: self._stack.pid(name), within=BACK_S, what=f"{name} is back")
        if died.code == -signal.SIGKILL:  # else it had ended by itself, or an operator had asked it to
            self._note("kill", name, at, f"pid {pid} ended by signal {-died.code}, now {fresh}")

    def _wipe(self) -> None:
        # Written right before, so that it is there: a Valkey that was killed a moment ago may still be coming up.
        eventually(lambda: self._mark("SET", MARK, "1"), within=BACK_S, what="valkey answers")
        at, before = time.monotonic(), self._stack.pid("valkey")
        wipe_valkey(self._stack.dev)
        if self._mark("EXISTS", MARK) != 0:
            self._failures.append("valkey still has what it had before the wipe")
            return
        now = self._stack.pid("valkey")
        self._note("wipe", "valkey", at, f"pid {before} and a key that was written before are gone, now {now}")

    def _mark(self, *command: str) -> object:
        """What Valkey answers; None while nobody does."""
        try:
            with Redis.from_url(self._stack.dev.redis) as link:
                return link.execute_command(*command)
        except RedisError:
            return None

    def _stop(self, name: str) -> None:
        pid = eventually(lambda: self._stack.pid(name), within=BACK_S, what=f"{name} lives")
        seconds = self._random.uniform(*STOP_S)
        thread = threading.Thread(target=self._go_on, args=(name, pid, seconds), daemon=True)
        self._hold(name, thread)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        eventually(lambda: state_of(pid) in ("T", ""), what=f"{name} is stopped")
        thread.start()

    def _go_on(self, name: str, pid: int, seconds: float) -> None:
        at = time.monotonic()
        threading.Event().wait(seconds)  # the fault itself: so long the process is held
        held = state_of(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self._hold(name, None)
        if held == "T":  # else an operator has restarted it meanwhile
            told = f"pid {pid} in state T for {seconds:.1f} s of a {SESSION_MS / 1000:.0f} s session"
            self._note("stop", name, at, told)

    def _hold(self, name: str, thread: threading.Thread | None) -> None:
        """Notes who is held, and lets the operator speak only while no executor is."""
        with self._lock:
            if thread:
                self._stopped[name] = thread
            else:
                del self._stopped[name]
            if any(each.startswith(("executor", "all")) for each in self._stopped):
                self._human.asleep.set()
            else:
                self._human.asleep.clear()

    def _note(self, kind: str, name: str, at: float, proof: str) -> None:
        victim = name.partition("-")[0]
        self.faults.append(Fault(kind, victim, at, proof, time.monotonic() - at))


def exit_of(exits: Sequence[Exit], name: str, pid: int) -> Exit | None:
    """How a process ended. Give it the exits since the kill: in a quarter of an hour pids come round again."""
    return next((exit_ for exit_ in exits if (exit_.name, exit_.pid) == (name, pid)), None)


def state_of(pid: int) -> str:
    """The state of a process, as `ps` prints it; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def ended_by_kill(process: Process, *, unless: Callable[[], bool], within: float) -> bool:
    """Waits for a process to die by SIGKILL; false when `unless` comes true first or the time is over."""
    deadline, pause = time.monotonic() + within, threading.Event()
    while process.poll() is None:
        if unless() or time.monotonic() > deadline:
            return False
        pause.wait(0.02)
    return process.returncode == -signal.SIGKILL
