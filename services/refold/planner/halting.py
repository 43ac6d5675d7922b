"""Orders are not sent while what they are about is halted, and go out when it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from refold.core.approval.catalog import Catalog
from refold.core.approval.halts import Halts
from refold.core.ids import CallId, RunId
from refold.core.messages import ToolRequest
from refold.core.planning.commands import Command
from refold.core.run.state import RunState
from refold.core.topics import TOOL_REQUESTED


class Halting:
    """Of one lane. The runs go on meanwhile, up to where each call of theirs waits for its order."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog, self._known = catalog, catalog.halts
        self._unsent: set[CallId] = set()

    def passes(self, command: Command) -> bool:
        """Whether an order may be sent now."""
        order = command.message
        if not isinstance(order, ToolRequest):
            self._unsent.discard(CallId(command.key))
            return True
        pool = command.topic.removeprefix(f"{TOOL_REQUESTED}.")
        if not self._catalog.halts.why(tool=order.tool, pool=pool, agent=order.agent, requester=order.requester):
            self._unsent.discard(order.call_id)
            return True
        if not order.again:
            self._unsent.add(order.call_id)
        return False

    def unsent(self, call: CallId) -> bool:
        """Whether a call was never ordered, as it was halted when it should have been."""
        return call in self._unsent

    def lifted(self, states: Mapping[RunId, RunState]) -> Iterator[tuple[RunState, int]]:
        """The calls that wait for executors and were halted, and are no longer, when that has changed."""
        before, now = self._known, self._catalog.halts
        self._known = now
        if before is now:
            return
        for state in list(states.values()):
            for step, opened in sorted(state.open.items()) if not state.over else ():
                if opened.phase == "dispatched" and _stopped(before, state, step) and not _stopped(now, state, step):
                    yield state, step


def _stopped(halts: Halts, state: RunState, step: int) -> str:
    call, asked = state.call(step), state.request
    who = {"agent": asked.agent if asked else "", "requester": asked.requester if asked else ""}
    return halts.why(tool=call.tool, pool=call.pool, **who)
