"""Runs of one test: the agent's descendants, and their effects on each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any, Generic, Protocol, TypeVar

from pydantic_core import to_jsonable_python

from refold.core.errors import UsageError
from refold.core.events import Entry
from refold.core.ids import RunId
from refold.core.planning.family import FamilyMessage, family_messages, origin_of, pause_above, waits_for
from refold.core.planning.verdict import ChildEnded, OfFamily, PauseAbove, Start
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.planner.agents.agent_host import failure_of
from refold.sdk.app import App

Kin = TypeVar("Kin", bound="Relative")


class Relative(Protocol):
    """A run of the family."""

    state: RunState

    def hear(self, told: OfFamily, /) -> None: ...

    def bear(self, told: Start, /) -> None: ...


class Relatives(Generic[Kin]):
    """Runs of a test by id, the first one first. `scripts` are the results of agents whose runs are not made.
    **Raises** UsageError for a script of an unknown agent."""

    def __init__(self, app: App, scripts: Mapping[str, Any]) -> None:
        self.runs: dict[RunId, Kin] = {}
        self._scripts, self._told, self._delivering = dict(scripts), deque[FamilyMessage](), False
        for name in self._scripts:
            if name not in app.agents:
                raise UsageError(
                    f"app {app.name} has no agent {name}", hint=f"there is {', '.join(sorted(app.agents))}"
                )

    def state(self, run: RunId) -> RunState | None:
        known = self.runs.get(run)
        return known.state if known else None

    def below(self, run: RunId) -> list[Kin]:
        return [each for name, each in self.runs.items() if name == run or name.startswith(f"{run}.")]

    def hear(self, run: Kin, entry: Entry) -> None:
        """Deliver an entry's messages to other runs, one after the other."""
        self._told.extend(family_messages(run.state, entry))
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._told:
                self._told.extend(self._tell(self._told.popleft()))
        finally:
            self._delivering = False

    def _tell(self, told: FamilyMessage) -> Iterator[FamilyMessage]:
        if not isinstance(told, Start):
            if (run := self.runs.get(told.run_id)) is not None:
                run.hear(self._as_it_stands(told, run) if isinstance(told, PauseAbove) else told)
            return
        assert told.origin is not None, "a run that another starts has an origin"
        parent = self.runs[told.origin.parent]
        if not waits_for(parent.state, told.origin):
            return
        if told.request.agent not in self._scripts:
            parent.bear(replace(told, pause=pause_above(parent.state, told.origin)))
        elif told.origin.step:
            yield self._scripted(told.origin.parent, told.origin.step, told)

    def _as_it_stands(self, told: PauseAbove, run: Kin) -> PauseAbove:
        above, origin = self.runs[told.parent], origin_of(run.state)
        return replace(told, pause=pause_above(above.state, origin) if origin else None)

    def _scripted(self, parent: RunId, step: int, told: Start) -> ChildEnded:
        script = self._scripts[told.request.agent]
        try:
            if isinstance(script, FunctionType):
                script = script(**(canonical.parse(told.request.input) or {}))
            if isinstance(script, BaseException):
                raise script
        except Exception as error:  # noqa: BLE001 - the script of a failing run
            return ChildEnded(parent, step, "failed", "null", failure_of(error))
        return ChildEnded(parent, step, "completed", canonical.dumps(to_jsonable_python(script)), None)
