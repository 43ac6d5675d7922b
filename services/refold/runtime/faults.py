"""Kills this process at an exact boundary, for tests: `REFOLD_FAULT_KILL=17` dies before the 17th effect.
`REFOLD_FAULT_KILL=17:after` dies when the 17th effect is done and the service has no answer yet. Effects are counted
over the life of the process, every record and every ledger operation separately."""

from __future__ import annotations

import os
import signal

from refold.core.errors import UsageError

VARIABLE = "REFOLD_FAULT_KILL"


class Boundaries:
    """Counts the effects of a process and kills it at one of them."""

    def __init__(self) -> None:
        spec = os.environ.get(VARIABLE, "")
        number, _, when = spec.partition(":")
        if spec and (not number.isdigit() or when not in ("", "before", "after")):
            raise UsageError(f"{VARIABLE}={spec!r}", hint="write a number, or a number and :after")
        self._at = int(number) if spec else 0
        self._after = when == "after"
        self._count = 0

    def take(self, effects: int) -> int | None:
        """Count effects before they are carried out; return how many of them to carry out before dying, or None."""
        # Effects are counted from 1, so 0 (no fault) matches none.
        before, self._count = self._count, self._count + effects
        if not before < self._at <= self._count:
            return None
        return self._at - before if self._after else self._at - before - 1

    def die(self) -> None:
        """End this process as `kill -9` does."""
        os.kill(os.getpid(), signal.SIGKILL)
