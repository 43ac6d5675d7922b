"""Fault injection for tests: `REFOLD_FAULT_KILL=17` kills the process before its 17th effect, `17:after` just after it.
Records and ledger operations are counted separately, over the life of the process."""

from __future__ import annotations

import os
import signal

from refold.core.errors import UsageError

VARIABLE = "REFOLD_FAULT_KILL"


class Boundaries:
    def __init__(self) -> None:
        spec = os.environ.get(VARIABLE, "")
        number, _, when = spec.partition(":")
        if spec and (not number.isdigit() or when not in ("", "before", "after")):
            raise UsageError(f"{VARIABLE}={spec!r}", hint="write a number, or a number and :after")
        self._at = int(number) if spec else 0
        self._after = when == "after"
        self._count = 0

    def take(self, effects: int) -> int | None:
        """Count effects before they are carried out; return the number to carry out before dying, or None."""
        # Effects are counted from 1, so 0 (no fault) matches none.
        before, self._count = self._count, self._count + effects
        if not before < self._at <= self._count:
            return None
        return self._at - before if self._after else self._at - before - 1

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
