"""The current attempt of a tool's code, for tools that use Refold."""

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import cached_property
from typing import Any

from refold.core.approval import signature
from refold.core.approval.decision import Decision
from refold.core.errors import MalformedError
from refold.core.messages import StreamPart, ToolRequest
from refold.core.wire import canonical

MOST_PART, MOST_A_SECOND = 16_384, 131_072
"""Limits of live parts: characters of a part, and a second; more is dropped. A fast model sends 2,000 a second."""


class CurrentAttempt:
    """Attempt of a call under way: its `request`, the decision on it, and a channel of live parts to readers."""

    def __init__(self, request: ToolRequest, live: Callable[[StreamPart], object] | None = None) -> None:
        self.request, self._live = request, live
        self._began_ms, self._n, self._lock = time.time_ns() // 1_000_000, 0, threading.Lock()
        self._left, self._filled_s = float(MOST_A_SECOND), time.monotonic()

    @cached_property
    def decision(self) -> Decision | None:
        """Decision of people on this call, checked by the executor before the tool began."""
        token = self.request.decision
        return Decision.parse(signature.content_of(token)) if token else None

    def tell(self, kind: str, data: Any) -> None:
        """Send data to live readers, as JSON. It is lost, without an error, if it is too large, too fast or unread."""
        if self._live is None:
            return
        try:
            text = canonical.dumps(data)
        except MalformedError:  # half a character, say, of which the rest is in the next part
            text = ""
        with self._lock:
            # Lost parts are numbered too: readers see the gap.
            self._n += 1
            number, fits = self._n, 0 < len(text) <= MOST_PART and self._take_allowance(len(text))
        if fits:
            order = self.request
            self._live(StreamPart(order.run_id, order.call_id, order.attempt, self._began_ms, number, kind, text))

    def _take_allowance(self, size: int) -> bool:
        """Take `size` characters off an allowance that refills at `MOST_A_SECOND`; False if too few are left."""
        now_s = time.monotonic()
        self._left = min(MOST_A_SECOND, self._left + (now_s - self._filled_s) * MOST_A_SECOND) - size
        self._filled_s = now_s
        if self._left < 0:
            self._left += size
            return False
        return True


CURRENT_ATTEMPT: ContextVar[CurrentAttempt | None] = ContextVar("refold_try", default=None)


def current_attempt() -> CurrentAttempt | None:
    """Return the attempt whose code is running; None in an agent, a probe or a tool that is called by hand."""
    return CURRENT_ATTEMPT.get()
