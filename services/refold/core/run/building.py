"""Calls that build on others: the earlier calls sent with one, so that its arguments need not repeat them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from refold.core.events import CallCompleted, CallProposed
from refold.core.ids import RunId
from refold.core.messages import EarlierCall, ToolRequest
from refold.core.run.intents import Call
from refold.core.run.state import RunState


@dataclass(frozen=True, slots=True)
class Base:
    """Earlier calls that a request of a run contained; later ones omit them. **Units**: `bytes` of args and results."""

    steps: frozenset[int]
    bytes: int
    _hash: Any

    @classmethod
    def of(cls, run: RunId) -> Base:
        return cls(frozenset(), 0, blake2b(f"{run}\n".encode(), digest_size=16))

    def followed_by(self, calls: list[EarlierCall]) -> Base:
        digest, size = self._hash.copy(), self.bytes
        for call in calls:
            args, result = call.args.encode(), call.result.encode()
            # Lengths go first: without them two lists of calls could have the same bytes.
            digest.update(b"%d %d %d " % (call.step, len(args), len(result)))
            digest.update(args)
            digest.update(result)
            size += len(args) + len(result)
        return Base(self.steps.union(call.step for call in calls), size, digest)

    @property
    def digest(self) -> str:
        """Digest (hex) of the run id and these calls, by which a short request names them to an executor."""
        name: str = self._hash.hexdigest()
        return name


def earlier(
    steps: Iterable[int],
    outcome_of: Callable[[int], tuple[CallProposed | Call, str] | None],
    skip: Container[int] = frozenset(),
) -> list[EarlierCall]:
    """Calls of these steps and those on which they build, in order, except unfinished ones and those in `skip`.
    `outcome_of` returns the call of a step and its result, None without a result."""
    calls: dict[int, EarlierCall] = {}
    ahead = list(steps)
    while ahead:
        step = ahead.pop()
        if step not in calls and step not in skip and (settled := outcome_of(step)) is not None:
            call, result = settled
            calls[step] = EarlierCall(step, call.args, result)
            ahead += call.builds_on
    return [calls[step] for step in sorted(calls)]


def calls_before(state: RunState, call: CallProposed, skip: Container[int] = frozenset()) -> list[EarlierCall]:
    """Calls of a run on which one of its calls builds, in order, except the steps in `skip`."""

    def outcome_of(step: int) -> tuple[CallProposed, str] | None:
        settled = state.outcomes.get(step)
        if settled is None or not isinstance(settled[1], CallCompleted):
            return None
        return state.call(step), settled[1].result

    return earlier(call.builds_on, outcome_of, skip) if call.builds_on else []


def complete(state: RunState, request: ToolRequest) -> ToolRequest:
    """Request of an attempt with all earlier calls on which its call builds."""
    before = calls_before(state, state.call(request.step))
    return replace(request, earlier=before) if before else request
