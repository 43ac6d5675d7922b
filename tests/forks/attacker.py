"""A process that is shut in, with functions of C that it has found before: whatever gets out of Python's walls.

`python -m tests.forks.attacker FOLDER PID POSTGRES` acts on the files of the folder, the process and the database,
by name in each line that it prints: `NAME: WHY`. What came of it, who has started it looks at.
"""

from __future__ import annotations

import _ctypes
import _posixsubprocess
import ctypes
import fcntl
import gc
import importlib
import mmap
import os
import resource
import signal
import sys
import threading
import types
from collections.abc import Callable
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import psycopg

from refold.lab.forks import ban

FOLDER, VICTIM, POSTGRES = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
LIBC = ctypes.CDLL(None)
BY_C = {name: getattr(LIBC, name) for name in ("system", "unlink", "rename", "creat", "mkdir", "kill", "truncate")}
IO_URING_SETUP = 425


def starts(name: str) -> None:
    """A program, past what Python reports of it."""
    ends, pipe = os.pipe()
    command = [b"/bin/sh", b"-c", f"echo acted > {FOLDER / name}".encode()]
    words: list[Any] = [command, [b"/bin/sh"], True, (pipe,), None, None, -1, -1, -1, -1, -1, -1, ends, pipe]
    more: list[Any] = [True, False, 0, None, None, None, -1, None, *([True] if sys.version_info >= (3, 11) else [])]
    os.waitpid(_posixsubprocess.fork_exec(*words, *more), 0)


def finds_by_handle(name: str) -> None:
    """A function of C, by the number of a library that is open already."""
    place = _ctypes.dlsym(ctypes.pythonapi._handle, "system")
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)(place)(f"echo acted > {FOLDER / name}".encode())


def finds_hook(name: str) -> None:
    """The hook among all objects, to make it another one."""
    for thing in gc.get_objects():
        if isinstance(thing, partial) and thing.func is ban._refuse:
            thing.__setstate__((lambda *args: None, (), {}, {}))  # type: ignore[attr-defined]
        for cell in getattr(thing, "__closure__", None) or () if isinstance(thing, types.FunctionType) else ():
            if isinstance(cell.cell_contents, frozenset):
                cell.cell_contents = frozenset()
    (FOLDER / "kept").chmod(0)


def opens_frames(name: str) -> None:
    """The same by the traceback of what was refused; the variables of a frame can be written from 3.13 on."""
    try:
        os.system("true")
    except Exception as error:  # noqa: BLE001 - it is hostile
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        if last is not None:
            last.tb_frame.f_locals["refused"] = frozenset()
    (FOLDER / "kept").chmod(0)


def other_code(name: str) -> None:
    """Another body for the hook."""
    ban._refuse.__code__ = (lambda *args: None).__code__
    (FOLDER / "kept").chmod(0)


def reloads(name: str) -> None:
    """The module of the walls anew, with nothing to refuse."""
    importlib.reload(ban)
    ban._MORE, ban.PREVENTED = "", ban.PREVENTED.__class__()
    sys.addaudithook(lambda event, args: None)
    (FOLDER / "kept").chmod(0)


def maps(name: str) -> None:
    """A file by its memory."""
    number = os.open(FOLDER / "kept", os.O_RDONLY)
    mmap.mmap(number, 4, access=mmap.ACCESS_WRITE)[:4] = b"gone"


def rings(name: str) -> None:
    """A file by a ring of the kernel, as far as to have one: what it asks for meets the same walls."""
    if LIBC.syscall(IO_URING_SETUP, 8, ctypes.create_string_buffer(200)) < 0:
        raise PermissionError(name)


def opens(name: str) -> None:
    """A file that is read, by somebody who opens it to write."""
    with open(FOLDER / name, opener=lambda path, _: os.open(path, os.O_CREAT | os.O_WRONLY)) as file:
        file.fileno()


def in_thread(name: str) -> None:
    """By C, in a thread of its own."""
    thread = threading.Thread(target=BY_C["system"], args=(f"echo acted > {FOLDER / name}".encode(),))
    thread.start()
    thread.join()


def memory(name: str) -> None:
    """Its own memory, as a file."""
    Path("/proc/self/mem").open("r+b").close()
    raise AssertionError(f"{name} can be written")


def asks_postgres(name: str) -> None:
    """A table, by libpq and the path of a Unix socket."""
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(f"create table {name} ()")


def interprets(name: str) -> None:
    """Another interpreter of this process, which has no hook of Python; it dials in pure Python."""
    module = importlib.import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    dials = f"import socket; socket.socket(socket.AF_UNIX).connect({str(FOLDER.parent / 'door')!r})"
    if module.run_string(module.create(), f"{dials}; import os; os.unlink({str(FOLDER / 'kept')!r})") is not None:
        raise PermissionError(name)


def by_c(function: str, *values: Any) -> Callable[[str], None]:
    """A function of C that succeeds or raises."""
    act = getattr(LIBC, function)

    def acts(name: str) -> None:
        if act(*values) == -1:
            raise PermissionError(name)

    return acts


def dials_by_c(address: bytes) -> Callable[[str], None]:
    """A connection to a Unix socket, by C."""

    def dials(name: str) -> None:
        number = SOCKET(1, 1, 0)
        if number < 0 or CONNECT(number, b"\x01\x00" + address, 2 + len(address)):
            raise PermissionError(name)

    return dials


SOCKET, CONNECT = LIBC.socket, LIBC.connect
LOCK = ctypes.create_string_buffer(64)
"""A lock of a whole file, for reading (F_RDLCK is 0)."""
DOOR = str(FOLDER.parent / "door").encode()
KEPT_NUMBER = os.open(FOLDER / "kept", os.O_RDONLY)
KEPT = str(FOLDER / "kept").encode()
ACTS: dict[str, Callable[[str], object]] = {
    "fork_exec": starts,
    "dlsym": finds_by_handle,
    "hook": finds_hook,
    "frames": opens_frames,
    "code": other_code,
    "reload": reloads,
    "mmap": maps,
    "thread": in_thread,
    "memory": memory,
    "io_uring": rings,
    "c-system": lambda name: BY_C["system"](f"echo acted > {FOLDER / name}".encode()),
    "c-creat": lambda name: BY_C["creat"](str(FOLDER / name).encode(), 0o644),
    "c-mkdir": lambda name: BY_C["mkdir"](str(FOLDER / name).encode(), 0o755),
    "c-unlink": lambda _: BY_C["unlink"](KEPT),
    "c-rename": lambda name: BY_C["rename"](KEPT, str(FOLDER / name).encode()),
    "c-truncate": lambda _: BY_C["truncate"](KEPT, ctypes.c_long(0)),
    "c-kill": lambda _: BY_C["kill"](VICTIM, signal.SIGKILL),
    "kill": lambda _: os.kill(VICTIM, signal.SIGKILL),
    "pidfd": lambda _: signal.pidfd_send_signal(os.pidfd_open(VICTIM), signal.SIGKILL),
    "prlimit": lambda _: resource.prlimit(VICTIM, resource.RLIMIT_CPU, (0, 0)),
    "setrlimit": lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, (9_999, 9_999)),
    "mkfifo": lambda name: os.mkfifo(FOLDER / name),
    "mknod": lambda name: os.mknod(FOLDER / name),
    "utime": lambda _: os.utime(FOLDER / "kept", (1, 1)),
    "rename": lambda name: Path(FOLDER / "kept").rename(FOLDER / name),
    "unlink": lambda _: Path(FOLDER / "kept").unlink(),
    "chmod": lambda _: Path(FOLDER / "kept").chmod(0),
    "symlink": lambda name: Path(FOLDER / name).symlink_to("kept"),
    "link": lambda name: os.link(FOLDER / "kept", FOLDER / name),
    "append": lambda _: Path(FOLDER / "kept").open("a").close(),
    "opener": opens,
    "openat": lambda _: os.open("kept", os.O_WRONLY | os.O_TRUNC, dir_fd=os.open(FOLDER, os.O_RDONLY)),
    "postgres": asks_postgres,
    "interpreter": interprets,
    "nice": lambda _: os.setpriority(os.PRIO_PROCESS, VICTIM, 5),
    "scheduler": lambda _: os.sched_setscheduler(VICTIM, os.SCHED_BATCH, os.sched_param(0)),
    "cpus": lambda _: os.sched_setaffinity(VICTIM, {0}),
    "own-nice": lambda _: os.nice(1),
    "flock": lambda _: fcntl.flock(KEPT_NUMBER, fcntl.LOCK_EX),
    "lockf": lambda _: fcntl.lockf(KEPT_NUMBER, fcntl.LOCK_SH),
    "lease": lambda _: fcntl.fcntl(KEPT_NUMBER, fcntl.F_SETLEASE, fcntl.F_RDLCK),
    "shared": lambda name: SharedMemory(f"refold-{name}-{os.getpid()}", create=True, size=8),
    "sysfs": lambda _: Path("/sys/kernel/mm/ksm/run").open("w").close(),
    "victim-memory": lambda _: Path(f"/proc/{VICTIM}/mem").open("rb").close(),
    "victim-environment": lambda _: Path(f"/proc/{VICTIM}/environ").read_bytes(),
    "socketpair": lambda _: __import__("socket").socketpair(),
    "raw-flock": by_c("flock", KEPT_NUMBER, 6),
    "raw-posix-lock": by_c("fcntl", KEPT_NUMBER, 6, LOCK),
    "raw-open-lock": by_c("fcntl", KEPT_NUMBER, 37, LOCK),
    "raw-owner": by_c("fcntl", KEPT_NUMBER, 8, VICTIM),
    "raw-nice": by_c("setpriority", 0, VICTIM, 5),
    "raw-cpus": by_c("sched_setaffinity", VICTIM, 8, ctypes.byref(ctypes.c_ulong(1))),
    "raw-dial": dials_by_c(DOOR),
    "raw-abstract": dials_by_c(b"\0" + DOOR),
    "raw-pair": by_c("socketpair", 1, 2, 0, ctypes.create_string_buffer(8)),
    "raw-fork": by_c("fork"),
    "raw-vfork": by_c("syscall", 58 if os.uname().machine == "x86_64" else 220, 0x11, 0, 0, 0, 0),
    "raw-exec": by_c("execve", b"/bin/true", None, None),
    "raw-ptrace": by_c("ptrace", 16, VICTIM, None, None),
    "raw-vm-write": by_c("process_vm_writev", VICTIM, None, 0, None, 0, 0),
    "raw-queue": by_c("mq_open", b"/refold-attacker", os.O_CREAT | os.O_RDWR, 0o600, None),
    "raw-segment": by_c("shmget", 0, 4096, 0o1600),
    "raw-semaphores": by_c("semget", 0, 1, 0o1600),
    "raw-messages": by_c("msgget", 0, 0o1600),
    "raw-memory-file": by_c("memfd_create", b"x", 0),
    "raw-pidfd": by_c("syscall", 434, VICTIM, 0),
    "raw-ring": by_c("syscall", IO_URING_SETUP, 8, ctypes.create_string_buffer(200)),
    "raw-openat2": by_c("syscall", 437, -100, KEPT, ctypes.create_string_buffer(b"\x01", 24), 24),
    "raw-x32": by_c("syscall", 0x40000000 | 41, 1, 1, 0),
    "raw-outlive": by_c("prctl", 1, 0, 0, 0, 0),
    "raw-unshare": by_c("unshare", 0x00020000),
    "raw-mount": by_c("mount", b"none", b"/mnt", b"tmpfs", 0, None),
    "raw-watch": by_c("fanotify_init", 0, 0),
    "raw-terminal": by_c("ioctl", 0, 0x5412, b"x"),
    "raw-session": by_c("setsid"),
    "raw-host": by_c("sethostname", b"x", 1),
    "raw-signal": by_c("tgkill", VICTIM, VICTIM, 0),
    "fd": lambda _: os.open(f"/proc/self/fd/{os.open(FOLDER / 'kept', os.O_RDONLY)}", os.O_RDWR | os.O_TRUNC),
}


if __name__ == "__main__":
    ban.shut()
    for each, act in ACTS.items():
        try:
            act(each)
            sys.stdout.write(f"{each}: ran\n")
        except BaseException as error:  # noqa: BLE001 - it is hostile
            sys.stdout.write(f"{each}: {type(error).__name__}\n")
