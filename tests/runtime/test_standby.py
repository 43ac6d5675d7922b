"""A process in reserve: real forks, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from refold.engine.runtime.standby import RESERVE, deaths_of, pause_s, serving_pid

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes in reserve need Linux")

SERVICE = """\
import os, signal, sys, time
{first}
from refold.engine.runtime.standby import stand_by
stand_by()
def stop(*_):
    print("stopped", os.getpid(), flush=True)
    sys.exit({code})
signal.signal(signal.SIGTERM, stop)
print("serves", os.getpid(), os.urandom(4).hex(), flush=True)
{then}
while True: time.sleep(0.05)
"""


class Reserve:
    """A process that stands by, and what its children have said."""

    def __init__(self, folder: Path, *, first: str = "", then: str = "", code: int = 0) -> None:
        self._said = folder / "said"
        with self._said.open("w") as out:
            text = SERVICE.format(first=first, then=then, code=code)
            self.process = subprocess.Popen([sys.executable, "-c", text], stdout=out)

    def said(self, word: str, least: int) -> list[list[str]]:
        """The lines that begin so, as soon as there are so many."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            whole = self._said.read_text().rpartition("\n")[0]
            lines = [line.split() for line in whole.splitlines() if line.startswith(word)]
            if len(lines) >= least:
                return lines
            time.sleep(0.01)
        raise AssertionError(f"{word} was not said {least} times: {self._said.read_text()}")

    def serves(self, number: int) -> int:
        """The pid of the child with this number, from 1."""
        return int(self.said("serves", number)[number - 1][1])


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Reserve]]:
    made: list[Reserve] = []
    yield made
    for each in made:
        with suppress(ProcessLookupError):
            each.process.kill()
        each.process.wait()


def lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def gone(pid: int) -> bool:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if not lives(pid):
            return True
        time.sleep(0.01)
    return False


def test_the_next_one_serves_when_one_is_killed(tmp_path: Path, started: list[Reserve]) -> None:
    started.append(reserve := Reserve(tmp_path))
    first = reserve.serves(1)
    assert serving_pid(reserve.process.pid) == first

    os.kill(first, signal.SIGKILL)
    second = reserve.serves(2)

    assert second != first
    assert serving_pid(reserve.process.pid) == second
    assert deaths_of(reserve.process.pid) == (1, -signal.SIGKILL)
    secrets = [line[2] for line in reserve.said("serves", 2)]
    assert len(set(secrets)) == 2, "two children have drawn the same secret"


def test_a_child_ends_with_the_process_in_reserve(tmp_path: Path, started: list[Reserve]) -> None:
    started.append(reserve := Reserve(tmp_path))
    child = reserve.serves(1)

    reserve.process.kill()

    assert gone(child), "two would serve under one name as soon as a supervisor starts the next"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("code", [0, 2])
def test_a_stop_reaches_the_child_and_nothing_is_started_after_it(
    tmp_path: Path, started: list[Reserve], number: int, code: int
) -> None:
    then = "signal.signal(signal.SIGINT, stop)"
    started.append(reserve := Reserve(tmp_path, code=code, then=then))
    child = reserve.serves(1)
    time.sleep(0.1)

    os.kill(reserve.process.pid, number)

    assert reserve.process.wait(10) == code
    assert [int(line[1]) for line in reserve.said("stopped", 1)] == [child]
    assert len(reserve.said("serves", 1)) == 1


def test_one_that_is_used_wrongly_is_not_started_again(tmp_path: Path, started: list[Reserve]) -> None:
    started.append(reserve := Reserve(tmp_path, then="sys.exit(2)"))

    assert reserve.process.wait(20) == 2
    assert len(reserve.said("serves", 1)) == 1


def test_a_crash_loop_pauses_longer_each_time(tmp_path: Path, started: list[Reserve]) -> None:
    started.append(reserve := Reserve(tmp_path, then="os._exit(1)"))
    begun = time.monotonic()

    reserve.said("serves", 5)

    assert time.monotonic() - begun > sum(map(pause_s, range(1, 5)))
    assert pause_s(1) == 0
    assert pause_s(50) == pause_s(51)
    time.sleep(0.3)  # into the pause: before it, the code is that of the child that has just died
    os.kill(reserve.process.pid, signal.SIGTERM)
    assert reserve.process.wait(10) == 0


def test_an_app_with_threads_serves_without_a_process_in_reserve(tmp_path: Path, started: list[Reserve]) -> None:
    first = "import threading; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    started.append(reserve := Reserve(tmp_path, first=first))

    assert reserve.serves(1) == reserve.process.pid
    assert serving_pid(reserve.process.pid) == reserve.process.pid


def test_between_a_death_and_the_next_fork_the_parent_is_the_answer() -> None:
    """So it was for a moment in `refold dev`, whose supervision broke off."""
    code = f"import time; open('/proc/self/comm', 'w').write('{RESERVE} 1 -9'); print('is', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as alone:
        assert alone.stdout is not None
        assert alone.stdout.readline() == "is\n"
        assert serving_pid(alone.pid) == alone.pid
        alone.kill()
