"""Generations of a run: one ends with `RunContinued`, the next begins in the same lane with what the first one carries
over. Its first entry names the last one of the generation before, so the chain of a run goes on."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from operator import attrgetter

from refold.core import events
from refold.core.ids import next_generation
from refold.core.messages import RunRequest
from refold.core.planning.verdict import Start
from refold.core.run.state import RunState

MOST_DIGESTS = 4_096
"""Signals whose repetition a later generation recognises: 32 KiB of its request."""

_DIGEST = 8


def successor(state: RunState, event: events.RunContinued) -> Start:
    """Request of the generation after a run that is over."""
    order = state.request
    assert order is not None, "a run that goes on was requested"
    request = RunRequest(
        next_generation(state.run_id),
        order.agent,
        event.input,
        order.requester,
        labels=order.labels,
        token=order.token,
        sessions=order.sessions,
        deadline_ms=state.deadline_ms,
        budget=order.budget,
    )
    # The digest of the first request: whoever repeats that one means the run, whichever generation it has.
    return Start(request, order.request_digest, seed="", traceparent=order.traceparent, before=state)


def link(before: RunState | None) -> events.Continued | None:
    if before is None:
        return None
    earlier = before.request.continues if before.request else None
    taken = [_digest(name) for name, _ in sorted(before.mail.taken.items(), key=lambda pair: (pair[1], pair[0]))]
    digests = (earlier.taken if earlier else b"") + b"".join(taken)
    return events.Continued(before.head.id, digests[-_DIGEST * MOST_DIGESTS :])


def first_events(before: RunState | None) -> list[events.Event]:
    """First events of a generation after its request: what the one before has used, and the signals that it has not
    taken."""
    if before is None:
        return []
    kept = sorted(before.mail.kept.values(), key=attrgetter("seq"))
    signals: list[events.Event] = [replace(entry.signal, sent_ms=entry.came_ms) for entry in kept]
    if before.account is None:
        return signals
    return [events.ChildBilled(before.run_id, before.account.used), *signals]


def has_taken(state: RunState, signal_id: str) -> bool:
    """True if an earlier generation has taken a signal."""
    taken = state.request.continues.taken if state.request and state.request.continues else b""
    digest = _digest(signal_id)
    at = taken.find(digest)
    while at > 0 and at % _DIGEST:
        at = taken.find(digest, at + 1)
    return at >= 0


def _digest(signal_id: str) -> bytes:
    return blake2b(signal_id.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).digest()
