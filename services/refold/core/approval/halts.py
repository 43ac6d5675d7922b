"""What is halted: no call of it is ordered or begun until the authority says that it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from refold.core.approval.people import spelt
from refold.core.errors import UsageError

HALT = "halt"
SCOPES = ("all", "agent", "tool", "pool", "requester")


def halt_name(scope: str, name: str = "") -> str:
    """The name of the entry that halts something. **Raises** UsageError."""
    if scope not in SCOPES or bool(name) == (scope == "all"):
        raise UsageError(f"nothing is called {scope} {name}".rstrip(), hint=f"halt one of {', '.join(SCOPES)}")
    return f"{HALT}/{scope}/{name}" if name else f"{HALT}/{scope}"


@dataclass(frozen=True, slots=True)
class Halts:
    """Why what is halted, by scope and name; nobody is told apart by how a name is spelt."""

    by_name: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def why(self, *, agent: str, tool: str, pool: str, requester: str, above: Iterable[str] = ()) -> str:
        """Why a call is halted, or nothing. `above` are the agents of the runs that wait for its run."""
        if not self.by_name:
            return ""
        who = (("agent", name) for name in (agent, *above))
        places = (("all", ""), *who, ("tool", tool), ("pool", pool), ("requester", requester))
        for scope, name in places:
            if (reason := self.by_name.get((scope, spelt(name)))) is not None:
                return " ".join(filter(None, (scope, name, "is halted:", reason)))
        return ""

    def with_entry(self, rest: str, reason: str | None) -> Halts:
        """What is halted after one more word about `SCOPE/NAME`; None: it goes on. **Raises** UsageError."""
        scope, _, name = rest.partition("/")
        halt_name(scope, name)
        kept = {place: why for place, why in self.by_name.items() if place != (scope, spelt(name))}
        return Halts(kept if reason is None else {**kept, (scope, spelt(name)): reason})
