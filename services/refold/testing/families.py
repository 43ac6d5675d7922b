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
from refold.sdk.app import App
from refold.sdk.frames import failure_of

Kin = TypeVar("Kin", bound="Relative")


class Relative(Protocol):
    state: RunState

    def hear(self, message: OfFamily, /) -> None: ...

    def bear(self, start: Start, /) -> None: ...


class Relatives(Generic[Kin]):
    """Runs of a test by id, the first one first. `scripts` are the results of agents whose runs are not made.
    **Raises** UsageError for a script of an unknown agent."""

    def __init__(self, app: App, scripts: Mapping[str, Any]) -> None:
        self.runs: dict[RunId, Kin] = {}
        self._scripts, self._undelivered, self._delivering = dict(scripts), deque[FamilyMessage](), False
        for name in self._scripts:
            if name not in app.agents:
                hint = f"there is {', '.join(sorted(app.agents))}"
                raise UsageError(f"app {app.name} has no agent {name}", hint=hint)

    def state(self, run: RunId) -> RunState | None:
        relative = self.runs.get(run)
        return relative.state if relative else None

    def below(self, run: RunId) -> list[Kin]:
        return [relative for name, relative in self.runs.items() if name == run or name.startswith(f"{run}.")]

    def hear(self, run: Kin, entry: Entry) -> None:
        """Deliver an entry's messages to other runs, one after the other."""
        self._undelivered.extend(family_messages(run.state, entry))
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._undelivered:
                self._undelivered.extend(self._deliver(self._undelivered.popleft()))
        finally:
            self._delivering = False

    def _deliver(self, message: FamilyMessage) -> Iterator[FamilyMessage]:
        if not isinstance(message, Start):
            if (run := self.runs.get(message.run_id)) is not None:
                run.hear(self._as_it_stands(message, run) if isinstance(message, PauseAbove) else message)
            return
        assert message.origin is not None, "a run that another starts has an origin"
        parent = self.runs[message.origin.parent]
        if not waits_for(parent.state, message.origin):
            return
        if message.request.agent not in self._scripts:
            parent.bear(replace(message, pause=pause_above(parent.state, message.origin)))
        elif message.origin.step:
            yield self._scripted(message.origin.parent, message.origin.step, message)

    def _as_it_stands(self, pause: PauseAbove, run: Kin) -> PauseAbove:
        above, origin = self.runs[pause.parent], origin_of(run.state)
        return replace(pause, pause=pause_above(above.state, origin) if origin else None)

    def _scripted(self, parent: RunId, step: int, start: Start) -> ChildEnded:
        script = self._scripts[start.request.agent]
        try:
            if isinstance(script, FunctionType):
                script = script(**(canonical.parse(start.request.input) or {}))
            if isinstance(script, BaseException):
                raise script
        except Exception as error:  # noqa: BLE001 - the script of a failing run
            return ChildEnded(parent, step, "failed", "null", failure_of(error))
        return ChildEnded(parent, step, "completed", canonical.dumps(to_jsonable_python(script)), None)
