"""Run a command that dies with the process that started it: `launch.py PARENT_PID COMMAND ...`. Run as a file by a bare
interpreter, in place of a `preexec_fn`, which may deadlock when the parent has threads: and the parent, with Kafka
clients and waiters, always has. The command replaces this program, so its pid is the child's."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask Linux for SIGKILL at the parent's end, then become the command."""
    parent = int(sys.argv[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the request: then the signal never comes.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
