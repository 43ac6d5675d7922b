"""Run a command that dies with its parent: `launch.py PARENT_PID COMMAND ...`, by a bare interpreter. It replaces a
`preexec_fn`, which may deadlock if the parent has threads."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the request: then the signal never comes.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
