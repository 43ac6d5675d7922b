"""The world that tools act upon: it counts effects and is no part of the system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Deed(NamedTuple):
    """Something that was done. `applied` is false where the receiver knew the key already; `decision` allowed it."""

    key: str
    call: str
    attempt: int
    tool: str
    by: str
    at_ms: int
    result: str
    applied: bool
    decision: str = ""


@dataclass(slots=True)
class Receiver:
    """Counts what was done, by key. Receivers of `keyed` tools do a key's effect once and then answer what it was.

    **Units**: `windows` has, by tool, the milliseconds after which a receiver forgets a key.
    """

    windows: Mapping[str, int] = field(default_factory=dict)

    done: list[Deed] = field(default_factory=list)
    by_key: dict[str, list[Deed]] = field(default_factory=dict)

    def act(
        self, *, key: str, call: str, attempt: int, tool: str, by: str, at_ms: int, keyed: bool, decision: str = ""
    ) -> str:
        """Does it, and gives the result: a text that names this very effect."""
        before = self.by_key.setdefault(key, [])
        remembered = before and at_ms - before[-1].at_ms <= self.windows.get(tool, at_ms)
        known = keyed and bool(remembered)
        result = before[-1].result if known else f'{{"effect":{len(self.done) + 1}}}'
        effect = Deed(key, call, attempt, tool, by, at_ms, result, not known, decision)
        self.done.append(effect)
        before.append(effect)
        return result

    def happened(self, key: str) -> str | None:
        """The truth about a key: the result of its first effect."""
        found = self.by_key.get(key)
        return found[0].result if found else None
