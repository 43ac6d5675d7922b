"""Walls that keep the process of a fork from acting: its own environment, the kernel where it lets us, and audit hooks.

The kernel is asked for a network with nothing in it, for files that do not grow, and to refuse programs, changes of
files and signals to others (Landlock, Linux 5.13): all of that holds for C code, too. Python reports sockets,
processes, foreign functions and changes of files to hooks, and here is one that refuses them all.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from collections import Counter
from functools import partial
from typing import Any

from refold.core.errors import UsageError
from refold.sdk.determinism.banned import EVENTS

_NETWORK, _USER = 0x40000000, 0x10000000
"""CLONE_NEWNET and CLONE_NEWUSER of Linux."""

_CREATE_RULESET, _RESTRICT_SELF, _NO_NEW_PRIVILEGES = 444, 446, 38
_FILES = (0x1FF3, 0x3FF3, 0x7FF3)
"""All rights of Landlock but to read files and folders, by version: run, write, make, remove; move; truncate."""
_PARENT_DIES = 1
"""PR_SET_PDEATHSIG of Linux: the signal for this process once the thread that has started it is gone."""

_MORE = frozenset(
    f"os.{name}"
    for name in (
        *("chmod", "chown", "fork", "forkpty", "kill", "killpg", "link", "rmdir", "spawn", "symlink", "truncate"),
        *("removexattr", "setxattr", "utime"),
    )
)
_MORE |= {"pty.spawn", "signal.pthread_kill", "syslog.syslog", "resource.prlimit", "resource.setrlimit"}
_MORE |= {f"ctypes.{name}" for name in ("cdata", "dlopen", "dlsym", "dlsym/handle", "call_function")}
_MORE |= {f"gc.get_{name}" for name in ("objects", "referents", "referrers")}  # they find the hook
_MORE |= {f"socket.{name}" for name in ("bind", "gethostbyname", "sendmsg", "sendto")}
_LET = frozenset({"time.sleep", "_thread.start_new_thread", "_thread.start_joinable_thread"})
"""Of what agents must not do: this acts on nobody."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

PREVENTED: Counter[str] = Counter()
"""Numbers of what was refused in this process, by the names that Python has for it."""


def shut(*, network: bool = False) -> bool:
    """Shuts this process in, for good. True if the kernel keeps it from any network.

    With `network` calls of models are let out: then the thread that runs agents is watched alone (`sdk.determinism`).
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that grows is an error then, and not the end
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    linux = ctypes.CDLL(None) if sys.platform == "linux" else None
    if linux:  # code that never ends would outlive who has started it, and could end it
        linux.prctl(_PARENT_DIES, signal.SIGKILL)
    if network:
        return False
    alone = False
    if linux:
        alone = bool(linux.unshare(_NETWORK | _USER) == 0)
        _lock(linux)
    # Neither a function of ours nor a cell of one: what an app can find, it can change.
    sys.addaudithook(partial(_refuse, (_refuse, frozenset(EVENTS) - _LET | _MORE, _WRITES, UsageError, PREVENTED)))
    return alone


def _lock(linux: ctypes.CDLL) -> None:
    """Has Landlock, as far as this kernel knows it, refuse programs, changes of files, TCP, and signals to others."""
    version = linux.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return
    rights = struct.pack("QQQ", _FILES[min(version, 3) - 1], 3, 3)[: 8 * (1 + (version > 3) + (version > 5))]
    rules = linux.syscall(_CREATE_RULESET, rights, len(rights), 0)
    if rules >= 0:
        linux.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        linux.syscall(_RESTRICT_SELF, rules, 0)
        os.close(rules)


def _refuse(known: tuple[Any, ...], event: str, args: tuple[Any, ...]) -> None:
    """The hook. What it looks at is `known`, itself among it. A child of the process has it, too."""
    own, refused, writes, error, counts = known
    if event not in refused and (event != "object.__setattr__" or args[0] is not own):
        return
    if event == "open" and not args[2] & writes:
        return
    counts[event] += 1
    raise error(f"a fork does nothing, and its app wants to ({event})", hint="--stub FILE answers a call")
