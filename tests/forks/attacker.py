"""A process that is shut in, with functions of C that it has found before: whatever gets out of Python's walls.

`python -m tests.forks.attacker FOLDER PID` acts on the files of the folder and on the process, by name in each line
that it prints: `NAME: WHY`. What came of it, who has started it looks at.
"""

from __future__ import annotations

import _ctypes
import _posixsubprocess
import ctypes
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
from pathlib import Path
from typing import Any

from refold.forks import ban

FOLDER, VICTIM = Path(sys.argv[1]), int(sys.argv[2])
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
    ban._MORE, ban.PREVENTED = frozenset(), ban.PREVENTED.__class__()
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
