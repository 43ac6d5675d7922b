"""The walls of a fork's process against whoever knows Python and C: nothing outside of it changes."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from refold.cli.commands.forks import _report_lines, _verdict_counts
from refold.console.pages.fork_pages import fork_file
from refold.lab.forks import ban
from refold.lab.forks.report import ForkReport
from tests.contract.table_benches import running_postgres
from tests.lent import lend
from tests.tidy.repository import ROOT

MACHINES = ("x86_64", "aarch64")

LANDLOCK = sys.platform == "linux" and ctypes.CDLL(None).syscall(444, None, 0, 1)
"""Version of what the kernel refuses for us: files from 1 on, truncation from 3 on, signals from 6 on."""


@pytest.fixture
def postgres(request: pytest.FixtureRequest) -> str:
    """The address of a Postgres on a Unix socket."""
    return lend(request, running_postgres)


@pytest.mark.skipif(LANDLOCK < 6, reason="Linux refuses signals to others from 6.12 on")
@pytest.mark.skipif(platform.machine() not in MACHINES, reason="system calls of this machine are not filtered")
def test_an_attacker_that_knows_c_changes_nothing_outside_of_its_process(tmp_path: Path, postgres: str) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "kept").write_text("as it was")
    before = (folder / "kept").stat()
    doors = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for door, address in zip(doors, (str(tmp_path / "door"), f"\0{tmp_path / 'door'}"), strict=True):
        door.bind(address)
        door.listen()
        door.setblocking(False)
    with subprocess.Popen(["sleep", "60"]) as victim:
        held = _scheduling(victim.pid)
        words = [sys.executable, "-m", "tests.forks.attacker", str(folder), str(victim.pid), postgres]
        said = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True).stdout
        alive = victim.poll() is None
        limits = Path(f"/proc/{victim.pid}/limits").read_text()
        after_all = _scheduling(victim.pid)
        victim.kill()

    after = (folder / "kept").stat()
    tried = dict(line.split(": ") for line in said.splitlines())
    assert len(tried) == 78
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert (folder / "kept").read_text() == "as it was"
    assert (before.st_mode, before.st_mtime) == (after.st_mode, after.st_mtime)
    assert alive
    assert "Max cpu time              unlimited" in limits
    assert after_all == held
    for door in doors:
        with door, pytest.raises(BlockingIOError):
            door.accept()
    with psycopg.connect(postgres) as connection:
        assert connection.execute("select 1 from pg_tables where tablename = 'postgres'").fetchall() == []
    unheard = {"fork_exec", "thread"}  # what Python does not report ends with a number of the kernel
    assert {name for name, ended in tried.items() if ended == "ran"} <= unheard | {n for n in tried if n[:2] == "c-"}


def test_a_process_without_a_filter_is_not_called_isolated() -> None:
    program = "from refold.lab.forks import ban; ban._SECCOMP.clear(); print(ban.shut())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)

    assert done.stdout == "False\n"


@pytest.mark.parametrize("isolated", [True, False])
def test_command_and_page_name_the_gap_of_a_fork_that_is_not_isolated(isolated: bool) -> None:
    report = ForkReport(run_id="r-1", at=0, verdict="other", isolated=isolated)

    assert any("not isolated" in line for line in _report_lines(report)) is not isolated
    assert ("1 not isolated" in _verdict_counts([report])) is not isolated
    assert ("by Python alone: C code" in fork_file("forks", [report], [{"agent": "x"}])) is not isolated


def _scheduling(pid: int) -> tuple[int, int, set[int]]:
    return os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid), os.sched_getaffinity(pid)


def _answer(machine: str, call: int, *arguments: int, arch: int | None = None) -> int:
    """What the filter answers to a system call: its program, run as the kernel runs it."""
    at, step = 0, list(struct.iter_unpack("HBBI", ban.seccomp_filter(machine)))
    data = struct.pack(
        "IIQ6Q", call, ban._SECCOMP[machine][0] if arch is None else arch, 0, *(*arguments, *[0] * 6)[:6]
    )
    word = 0
    while True:
        code, true, false, value = step[at]
        at += 1
        if code == ban._RETURN:
            return int(value)
        if code == ban._LOAD:
            (word,) = struct.unpack_from("I", data, value)
        else:
            holds = {ban._EQUAL: word == value, ban._AT_LEAST: word >= value, ban._ANY_BIT: bool(word & value)}[code]
            at += true if holds else false


def _numbers(machine: str) -> dict[str, int]:
    column = MACHINES.index(machine) + 1
    rows = (call.split(":") for call in ban._CALLS.split())
    return {row[0]: int(row[column]) for row in rows if row[column]}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_lets_through_what_it_lists_and_no_other_call(machine: str) -> None:
    known, good = _numbers(machine), {"clone": 0x3D0F00, "ioctl": 0x5401, "prctl": 15}
    arguments = {known[name]: (value,) * 6 for name, value in good.items()}
    let = {call for call in range(1_000) if _answer(machine, call, *arguments.get(call, ())) == ban._ALLOW}

    assert let == set(known.values())
    assert {_answer(machine, call) for call in (*range(424, 600), *(0x40000000 | call for call in let))} == {0x50026}
    assert {_answer(machine, call, arch=0x40000003) for call in let} == {ban._REFUSE}  # calls of 32 bits


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_refuses_arguments_by_which_a_call_acts(machine: str) -> None:
    known = _numbers(machine)
    assert _answer(machine, known["openat"], 0, 0, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY) == ban._ALLOW
    refused: dict[str, tuple[tuple[int, ...], ...]] = {
        "openat": tuple((0, 0, flag) for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND)),
        "clone": ((0x11,), (0,), (0x3D0F00 | 0x20000,), (0x3D0F00 & ~0x10000,)),
        "fcntl": tuple((0, command) for command in (6, 7, 8, 10, 37, 38, 1024, 1026, 1031, 1033)),
        "ioctl": tuple((0, request) for request in (0x5412, 0x541C, 0x5402, 0x5422)),
        "prctl": ((1,), (4,), (22,), (38,)),
        "prlimit64": ((1,), (4_000_000,)),
    }
    for name, many in refused.items():
        assert {_answer(machine, known[name], *arguments) for arguments in many} == {ban._REFUSE}, name


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")],
)
def test_numbers_of_system_calls_are_those_of_the_kernels_headers(machine: str, header: str) -> None:
    path = Path("/usr/include") / header
    if not path.exists():
        pytest.skip("the kernel's headers are not installed")
    there = {name: int(number) for name, number in re.findall(r"define __NR(?:3264)?_(\w+) (\d+)", path.read_text())}
    there.setdefault("newfstatat", there.get("fstatat", 0))

    assert {name: there.get(name) for name in _numbers(machine)} == _numbers(machine)
