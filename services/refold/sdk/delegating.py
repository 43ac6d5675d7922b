"""Children of an agent: input as JSON, end as a value or an error."""

from collections.abc import Callable
from typing import Any, Literal, Protocol

from refold.core.approval.condition import Condition, Language
from refold.core.errors import ChildFailed, MalformedError, UsageError
from refold.core.events import ChildCompleted
from refold.core.ids import child_id, run_id
from refold.core.planning.waiting import check_name
from refold.core.run.intents import PublishEvent, SendSignal, StartRun
from refold.core.wire import canonical
from refold.sdk.json_codec import json_of


class Listener:
    """Agent to run for a published `event` with `match`, a condition on `data` and `event`. **Raises** UsageError."""

    def __init__(self, event: str, match: str, agent: str) -> None:
        self.event, self.agent = event, agent
        try:
            self._condition = Condition(match, OF_EVENTS) if match else None
        except UsageError as error:
            raise UsageError(f"the match of event {event!r}: {error.message}", hint=error.hint) from None

    def fits(self, event: str, data: Callable[[], Any]) -> bool:
        """True if the agent runs for the event; False if its condition has no value."""
        if event != self.event:
            return False
        return self._condition is None or self._condition.value({"event": event, "data": data()}) is True


OF_EVENTS = Language({"event": "string: what the event is called", "data": "dyn: its data, any JSON value"})


class Callee(Protocol):
    name: str

    def input_json(self, payload: Any) -> str:
        """Return an input as canonical JSON. **Raises** UsageError if the agent cannot be started with it."""
        ...

    def means(self, text: str, other: str) -> bool: ...

    def read_result(self, text: str) -> Any:
        """Return the value of a result. **Raises** UsageError if the agent cannot have returned it."""
        ...


OnParentEnd = Literal["cancel", "abandon"]
"""Fate of a child when its parent is over, or gives it up."""


def started(run_id: str, agent: Callee, payload: Any, on_parent_end: OnParentEnd, *, typed: bool) -> StartRun:
    """Request to run an agent. **Raises** UsageError for an unfit input."""
    if on_parent_end not in ("cancel", "abandon"):
        raise UsageError(f"on_parent_end={on_parent_end!r}", hint="it is 'cancel' or 'abandon'")
    input_json = agent.input_json(payload)

    def read(ended: ChildCompleted) -> Any:
        if ended.status == "completed":
            return agent.read_result(ended.result) if typed else canonical.parse(ended.result)
        run, failure = child_id(run_id, ended.step), ended.failure
        code, message = (failure.code, failure.message) if failure else (ended.status, "")
        text = (
            f"run {run} of {agent.name} was {ended.status}"
            if code == "cancelled"
            else f"run {run} of {agent.name} failed"
        )
        raise ChildFailed(f"{text}: {message}", run_id=run, code=code, message=message)

    return StartRun(agent.name, input_json, on_parent_end == "abandon", read, agent.means)


def published(name: str, data: Any) -> PublishEvent:
    """Event to publish. **Raises** UsageError for an invalid name or data."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"ctx.publish({name!r}, ...)", hint="an event is named by a word, and its data is JSON")
    return PublishEvent(name, json_of(data, f"data of event {name!r}"))


def signalled(run: str, name: str, data: Any) -> SendSignal:
    """Signal to another run. **Raises** UsageError for an invalid name, run or data."""
    try:
        target = run_id(run)
    except MalformedError as error:
        raise UsageError(f"ctx.signal({run!r}, ...): {error.message}", hint="pass the run's id") from None
    return SendSignal(target, check_name(name), json_of(data, f"data of signal {name!r}"))
