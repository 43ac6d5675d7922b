"""Walls that keep the process of a fork from acting: its own environment, the kernel where it lets us, and audit hooks.

The kernel is asked for a network with nothing in it and for files that do not grow: both hold for C code, too. Python
reports sockets, processes, foreign functions and changes of files to hooks, and here is one that refuses them all.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from refold.core.errors import UsageError
from refold.sdk.determinism.banned import EVENTS

_NETWORK, _USER = 0x40000000, 0x10000000
"""CLONE_NEWNET and CLONE_NEWUSER of Linux."""

_MORE = frozenset(
    f"os.{name}"
    for name in ("chmod", "chown", "fork", "forkpty", "kill", "killpg", "link", "rmdir", "spawn", "symlink", "truncate")
)
_MORE |= {"ctypes.dlopen", "ctypes.dlsym", "pty.spawn", "signal.pthread_kill", "syslog.syslog"}
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
    if network:
        return False
    alone = sys.platform == "linux" and bool(ctypes.CDLL(None).unshare(_NETWORK | _USER) == 0)
    sys.addaudithook(_hook())
    return alone


def _hook() -> Callable[[str, tuple[Any, ...]], None]:
    """The hook. It looks at nothing that an app could change by its name, and a child of the process has it, too."""
    refused, writes, error, counts = frozenset(EVENTS) - _LET | _MORE, _WRITES, UsageError, PREVENTED

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        if event not in refused or (event == "open" and not args[2] & writes):
            return
        counts[event] += 1
        raise error(f"a fork does nothing, and its app wants to ({event})", hint="--stub FILE answers a call")

    return refuse
