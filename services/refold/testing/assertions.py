"""Assertions about a history; a failure shows the history."""

from collections.abc import Callable, Mapping
from typing import Any, get_args

from refold.core.errors import MalformedError, UsageError
from refold.core.events import Event
from refold.core.wire import canonical
from refold.testing.agents import AgentRun
from refold.testing.reading import CallMade

Expected = str | tuple[str, Mapping[str, Any]]
"""A kind of event, alone or with values of its fields: `("CallProposed", {"tool": "pay"})`."""

_KINDS = frozenset(kind.__name__ for kind in get_args(Event))


def assert_called(
    run: AgentRun, tool: Callable[..., Any] | str, args: Mapping[str, Any] | None = None, *, times: int | None = None
) -> list[CallMade]:
    """Assert that the run called this tool: with these arguments, if given, and `times` often, if given.

    Returns those calls, in order. **Raises** AssertionError; UsageError if the app has no such tool.
    """
    __tracebackhide__ = True
    name = run.app.find(tool).name
    calls = [call for call in run.calls if call.tool == name]
    meant = [call for call in calls if (args or {}).items() <= call.args.items()]
    if (len(meant) != times) if times is not None else not meant:
        expected = f"{name} with {canonical.dumps(dict(args))}" if args else name
        often = "once or more" if times is None else f"{times} times"
        actual = ", ".join(canonical.dumps(call.args) for call in calls) or "none at all"
        raise AssertionError(f"{expected} was called {len(meant)} times, not {often}; there is: {actual}")
    return meant


def assert_history(run: AgentRun, *expected: Expected) -> None:
    """Assert that the history has these events, in this order, possibly with others in between.

    A field that holds JSON may be compared with a value: `("CallProposed", {"args": {"amount": 20}})`. **Raises**
    AssertionError with the history; UsageError for an unknown kind of event.
    """
    __tracebackhide__ = True
    place = 0
    for number, expectation in enumerate(expected, start=1):
        kind, fields = (expectation, {}) if isinstance(expectation, str) else expectation
        if kind not in _KINDS:
            raise UsageError(f"there is no event {kind}", hint="`run.history` has the kinds of those that happened")
        places = range(place, len(run.events))
        at = next((at for at in places if _is(run.events[at], kind, fields)), None)
        if at is None:
            text = "".join(f" {name}={value!r}" for name, value in fields.items())
            after = f" after event {place}" if place else ""
            raise AssertionError(f"expected as number {number}: {kind}{text}, and there is none{after}\n{run.story}")
        place = at + 1


def _is(event: Event, kind: str, fields: Mapping[str, Any]) -> bool:
    equal = (_equal(getattr(event, name, None), value) for name, value in fields.items())
    return type(event).__name__ == kind and all(equal)


def _equal(actual: Any, value: Any) -> bool:
    if isinstance(actual, str) and not isinstance(value, str):
        try:
            return bool(canonical.parse(actual) == value)
        except MalformedError:
            return False
    return bool(actual == value)
