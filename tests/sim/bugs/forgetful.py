"""Bugs of orders that go on from what an executor has seen: it lacks it, has another, or nobody hears of that."""

from __future__ import annotations

from dataclasses import replace

from refold.core.messages import ShortRequest, ToolRequest
from refold.core.planning.verdict import Again, Ignore, Ruling
from refold.core.run.building import Base
from tests.sim.bugs.planting import Bug, wrapped


def _acts_on_a_part(whole: object) -> object:
    def found(self: object, request: ToolRequest) -> object:
        return whole(self, request) or (request, None)  # type: ignore[operator]

    return found


def _goes_on_from_any(whole: object) -> object:
    def found(self: object, request: ToolRequest) -> object:
        known = self._bases  # type: ignore[attr-defined]
        if isinstance(request, ShortRequest) and known:
            calls = [*next(reversed(known.values()))[2], *request.earlier]
            return replace(request, earlier=calls), None
        return whole(self, request)  # type: ignore[operator]

    return found


def _tells_nobody(result: object) -> object:
    def ruling(*given: object) -> Ruling:
        found: Ruling = result(*given)  # type: ignore[operator]
        return Ignore("it goes out again at its deadline") if isinstance(found, Again) else found

    return ruling


def _one_digest(self: Base) -> str:
    return "0" * 32


FORGETFUL: dict[str, Bug] = {
    "short-order-acted-on-in-part": Bug(("talk",), (wrapped("SeenCalls.whole", _acts_on_a_part),), ("unlearn",)),
    "short-order-on-any-base": Bug(("talk-shared",), (wrapped("SeenCalls.whole", _goes_on_from_any),)),
    "short-order-told-to-nobody": Bug(("talk",), (wrapped("decide._result", _tells_nobody),), ("unlearn",)),
    "short-order-digest-of-nothing": Bug(
        ("talk-shared",), (("Base.digest", property(_one_digest)),), ("unlearn", "move")
    ),
}
