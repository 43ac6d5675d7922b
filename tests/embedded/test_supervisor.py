"""The supervisor restarts what dies, slows down crash loops, and stops everything in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from refold.core.errors import NotFoundError, RefoldError, UsageError
from refold.dev.supervisor import Child, Exit, Pids, Supervisor
from tests.embedded.processes import SLEEPER, STUBBORN, gone, has, lives, polite
from tests.waiting import eventually, under_load

CTRL_C = """
import sys
from datetime import timedelta
from pathlib import Path
from refold.dev.supervisor import Child
from refold.engine.runtime.signals import stop_signals
from refold.dev.supervisor import Supervisor
supervisor = Supervisor()
with stop_signals(supervisor.hurry) as asked:
    supervisor.add(Child("child", tuple(sys.argv[2:]), Path(sys.argv[1]), grace=timedelta(minutes=5)))
    print(*supervisor.pids()["child"], flush=True)
    asked.wait()
    supervisor.stop()
print("stopped", flush=True)
"""


class Watched:
    """A supervisor whose reports are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes: list[Pids] = []
        self.exits: list[Exit] = []
        self.supervisor = Supervisor(on_change=self.changes.append, on_exit=self.exits.append)

    def add(self, name: str, argv: tuple[str, ...], *, rank: int = 0, grace: float = 10.0) -> None:
        """Add a child whose log lies in the folder."""
        log = self.folder / f"{name}.log"
        self.supervisor.add(Child(name, argv, log, rank=rank, grace=timedelta(seconds=grace)))

    def pid(self, name: str) -> int:
        """Return the pid of the one living child of this name, waiting for it."""
        return eventually(lambda: self.supervisor.pids().get(name))[0]

    def next_pid(self, name: str, before: int) -> int:
        """Return the pid of the successor of a child that died."""
        return next(pid for pid in eventually(lambda: set(self.supervisor.pids()[name]) - {before}))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """Give a running supervisor without children."""
    watched = Watched(tmp_path)
    yield watched
    if watched.supervisor.active:
        watched.supervisor.stop()


def test_a_killed_child_is_back_at_once(watched: Watched) -> None:
    watched.add("service", SLEEPER)
    first = watched.pid("service")

    began = time.monotonic()
    os.kill(first, signal.SIGKILL)
    second = watched.next_pid("service", first)
    took = time.monotonic() - began

    # 10 to 30 ms as a rule; the bound leaves room for a machine under load, not for a pause.
    assert took < under_load(1.0)
    assert lives(second)
    assert watched.supervisor.restarts("service") == 1


def test_every_change_and_every_end_is_reported(watched: Watched) -> None:
    watched.add("service", SLEEPER)
    first = watched.pid("service")
    os.kill(first, signal.SIGKILL)
    second = watched.next_pid("service", first)

    eventually(lambda: len(watched.changes) == 3 and watched.exits)

    assert watched.changes == [{"service": [first]}, {"service": []}, {"service": [second]}]
    assert watched.exits == [Exit("service", first, -signal.SIGKILL, timedelta(0))]


def test_a_crash_loop_is_slowed_down(watched: Watched) -> None:
    watched.add("broken", (sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"))

    eventually(lambda: len(watched.exits) >= 4)

    assert [exit_.pause.total_seconds() for exit_ in watched.exits[:4]] == [0.0, 0.1, 0.2, 0.4]
    assert {exit_.code for exit_ in watched.exits} == {3}


def test_a_child_that_leaves_with_status_0_is_started_again(watched: Watched, tmp_path: Path) -> None:
    watched.add("service", polite(tmp_path / "journal", "service"))
    first = watched.pid("service")
    eventually(has(tmp_path / "service.log", "ready"))

    os.kill(first, signal.SIGTERM)

    assert lives(watched.next_pid("service", first))
    assert watched.exits[0].code == 0


def test_children_may_share_a_name(watched: Watched) -> None:
    watched.add("executor", SLEEPER)
    watched.add("executor", SLEEPER)

    eventually(lambda: len(set(watched.supervisor.pids()["executor"])) == 2)


def test_children_stop_in_the_order_of_their_ranks(watched: Watched, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    for rank, name in enumerate(("broker", "valkey", "planner")):
        watched.add(name, polite(journal, name), rank=rank)
        eventually(has(tmp_path / f"{name}.log", "ready"))
    pids = [pid for pids in watched.supervisor.pids().values() for pid in pids]

    watched.supervisor.stop()

    assert journal.read_text().split() == ["planner", "valkey", "broker"]
    assert gone(*pids)()
    assert watched.exits == []


def test_a_stop_does_not_wait_for_a_deaf_child_beyond_its_grace(watched: Watched, tmp_path: Path) -> None:
    watched.add("deaf", STUBBORN, grace=0.2)
    eventually(has(tmp_path / "deaf.log", "deaf"))
    pid = watched.pid("deaf")

    watched.supervisor.stop()

    assert gone(pid)()


def test_a_child_stays_down_while_something_is_done_to_its_data(watched: Watched) -> None:
    watched.add("valkey", SLEEPER)
    first = watched.pid("valkey")

    with watched.supervisor.down("valkey"):
        assert gone(first)()
        assert watched.supervisor.pids() == {"valkey": []}

    assert lives(watched.next_pid("valkey", first))


def test_an_unknown_name_and_an_unknown_command_are_refused(watched: Watched) -> None:
    with pytest.raises(NotFoundError, match="no process is called ghost"), watched.supervisor.down("ghost"):
        pass

    with pytest.raises(UsageError, match="no such command"):
        watched.add("ghost", ("refold-no-such-thing",))

    assert watched.supervisor.pids() == {}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_report_that_raises_ends_all_children_and_is_not_silent(tmp_path: Path) -> None:
    seen: list[int] = []

    def full_disk(pids: Pids) -> None:
        seen.extend(pids["service"])
        raise OSError("no space left on device")

    supervisor = Supervisor(on_change=full_disk)
    supervisor.add(Child("service", SLEEPER, tmp_path / "log"))
    eventually(lambda: not supervisor.active)

    assert gone(*seen)()
    with pytest.raises(RefoldError, match="supervision broke off"):
        supervisor.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_children_and_then_the_process(tmp_path: Path, number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", CTRL_C, str(tmp_path / "log"), *SLEEPER], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())

    parent.send_signal(number)
    said, _ = parent.communicate(timeout=60)

    assert (parent.returncode, said) == (0, "stopped\n")
    assert gone(child)()


def test_a_second_signal_cuts_the_grace_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = subprocess.Popen([sys.executable, "-c", CTRL_C, str(log), *STUBBORN], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    eventually(has(log, "deaf"))

    began = time.monotonic()
    parent.send_signal(signal.SIGINT)
    eventually(has(log, "asked"))
    parent.send_signal(signal.SIGINT)
    parent.wait(timeout=60)
    took = time.monotonic() - began
    parent.stdout.close()

    assert took < under_load(8)
    assert gone(child)()
