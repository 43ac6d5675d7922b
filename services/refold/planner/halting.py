"""Orders are not sent while what they are about is halted, or their run paused, and go out when it goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from refold.core.approval.catalog import Catalog, Halts
from refold.core.ids import CallId, RunId, call_id
from refold.core.messages import ToolRequest
from refold.core.planning.commands import Command
from refold.core.run.state import RunState
from refold.core.topics import TOOL_REQUESTED

LOOKS = 100
"""How many runs that sleep a turn looks into after a halt was lifted: some milliseconds."""


class Halting:
    """Of one lane. The runs go on meanwhile, up to where each call of theirs waits for its order."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog, self._known = catalog, catalog.halts
        self._unsent: set[CallId] = set()
        self._paused: set[CallId] = set()
        self._resumed: set[RunId] = set()
        self._unseen: deque[tuple[RunId, Halts]] = deque()

    def passes(self, command: Command, state: RunState, *, own: bool = False) -> bool:
        """Whether an order of a run may be sent now. `state` is the latest that is accepted; `own`: of an own entry."""
        order = command.message
        if not isinstance(order, ToolRequest):
            self._unsent.discard(CallId(command.key))
            self._paused.discard(CallId(command.key))
            return True
        if state.paused:
            self._paused.add(order.call_id)
        elif not self._why(order, command.topic.removeprefix(f"{TOOL_REQUESTED}.")):
            self._unsent.discard(order.call_id)
            return True
        if own and not order.again:
            self._unsent.add(order.call_id)
        return False

    def _why(self, order: ToolRequest, pool: str) -> str:
        return self._catalog.halts.why(
            tool=order.tool, pool=pool, agent=order.agent, requester=order.requester, above=order.above
        )

    def unsent(self, call: CallId) -> bool:
        """Whether a call was never ordered, as it was halted when it should have been."""
        return call in self._unsent

    def keep(self, call: CallId) -> None:
        """A call of a run that is paused is to be ordered when that goes on."""
        self._paused.add(call)

    def resume(self, run: RunId) -> None:
        """A run is not paused any more."""
        self._resumed.add(run)

    @property
    def looking(self) -> bool:
        """True while runs that sleep are left to be looked into, as a halt was lifted."""
        return bool(self._unseen)

    def lifted(
        self, states: Mapping[RunId, RunState], asleep: Iterable[RunId], find: Callable[[RunId], RunState | None]
    ) -> Iterator[tuple[RunState, int]]:
        """The calls that wait for executors and were kept back, and are no longer, when that has changed.

        `find` looks into a run; those `asleep` have their turn a few at a time.
        """
        resumed, self._resumed = self._resumed, set()
        for run in resumed & states.keys():
            yield from self._kept(states[run])
        before, now = self._known, self._catalog.halts
        self._known = now
        awake = list(states.values()) if before is not now else []
        if before.by_name.keys() - now.by_name.keys():
            # A predecessor kept their calls back: without this they would go out at their deadlines only.
            self._unseen.extend((run, before) for run in asleep)
        for state in awake:
            yield from self._freed(state, before)
        for _ in range(min(LOOKS, len(self._unseen))):
            run, halts = self._unseen.popleft()
            if (found := find(run)) is not None:
                yield from self._freed(found, halts)

    def _freed(self, state: RunState, before: Halts) -> Iterator[tuple[RunState, int]]:
        for step, opened in sorted(state.open.items()) if not state.over else ():
            if (
                opened.phase == "dispatched"
                and _stopped(before, state, step)
                and not _stopped(self._known, state, step)
            ):
                yield state, step

    def _kept(self, state: RunState) -> Iterator[tuple[RunState, int]]:
        for step, opened in sorted(state.open.items()) if not (state.over or state.paused) else ():
            call = call_id(state.run_id, opened.seq)
            if opened.phase == "dispatched" and call in self._paused:
                self._paused.discard(call)
                yield state, step


def _stopped(halts: Halts, state: RunState, step: int) -> str:
    call, asked = state.call(step), state.request
    if asked is None:
        return halts.why(tool=call.tool, pool=call.pool, agent="", requester="")
    return halts.why(tool=call.tool, pool=call.pool, agent=asked.agent, requester=asked.requester, above=asked.above)
