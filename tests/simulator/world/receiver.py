"""The world that tools act upon: it counts effects and is no part of the system."""

from __future__ import annotations

from typing import NamedTuple

from refold.core.messages import ToolRequest
from tests.simulator.app import FACTS
from tests.simulator.minds.models import answer
from tests.simulator.settings import WINDOWS


class Deed(NamedTuple):
    """Something that was done. `applied` is false where the receiver knew the key already; `decision` allowed it."""

    key: str
    call: str
    attempt: int
    tool: str
    decision: str
    at_ms: int
    result: str
    applied: bool


class Receiver:
    """Counts what was done. Receivers of `keyed` tools do a key's effect once and then answer what it was."""

    def __init__(self) -> None:
        self.done: list[Deed] = []
        self._by_key: dict[str, list[Deed]] = {}

    def act(self, ask: ToolRequest, at_ms: int) -> str:
        """Does it, and gives the result: a text that names this very effect."""
        before = self._by_key.setdefault(ask.key, [])
        remembered = before and at_ms - before[-1].at_ms <= WINDOWS.get(ask.tool, at_ms)
        known = FACTS[ask.tool].effect == "keyed" and bool(remembered)
        result = before[-1].result if known else f'{{"effect":{len(self.done) + 1}}}'
        if ask.tool == "model":
            result = answer(ask.args, len(self.done))
        deed = Deed(ask.key, ask.call_id, ask.attempt, ask.tool, ask.decision, at_ms, result, not known)
        self.done.append(deed)
        before.append(deed)
        return result

    def happened(self, key: str) -> str | None:
        """The truth about a key: the result of its first effect."""
        deeds = self._by_key.get(key)
        return deeds[0].result if deeds else None
