"""The context: all that an agent may know and do, and every bit of it the same again when its run is recovered."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from random import Random
from typing import Any, TypeVar, overload
from uuid import UUID

from pydantic_core import PydanticSerializationError, to_jsonable_python

from refold.core.errors import MalformedError, UsageError
from refold.core.run.replay import Call, Gather, Intent, Moment, Note, Sleep, describe
from refold.core.wire import canonical
from refold.sdk.log import AgentLog
from refold.sdk.retry import Retry, milliseconds
from refold.sdk.tool import ToolDef

R = TypeVar("R")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Context:
    """What an agent gets as its first argument. Everything that it gives to `await` becomes a step of the run."""

    def __init__(
        self, run_id: str, *, seed: str, moment: Moment, find: Callable[[Callable[..., Any] | str], ToolDef]
    ) -> None:
        self.run_id = run_id
        self.log = AgentLog(moment, {"run_id": run_id})
        self.find = find
        self._seed = seed
        self._moment = moment
        self._made: dict[int, Intent] = {}

    @overload
    def call(
        self,
        tool: Callable[..., Coroutine[Any, Any, R]],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> Awaitable[R]: ...
    @overload
    def call(
        self,
        tool: Callable[..., R],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> Awaitable[R]: ...
    @overload
    def call(
        self, tool: str, /, *args: Any, retry: Retry | None = None, timeout: timedelta | None = None, **kwargs: Any
    ) -> Awaitable[Any]: ...
    def call(
        self,
        tool: Callable[..., Any] | str,
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> Awaitable[Any]:
        """Calls a tool: `await ctx.call(push_image, "shop:1.2")`.

        Naming the tool by a string gives the result as plain JSON data, naming it by its function as its type.
        **Raises** UsageError at once when there is no such tool or the arguments do not fit; CallFailed when awaited,
        after the last attempt.
        """
        declared = self.find(tool)
        return _Call(
            tool=declared.name,
            args=declared.canonical_args(*args, **kwargs),
            pool=declared.pool,
            effect=declared.effect,
            timeout_ms=declared.timeout_ms if timeout is None else milliseconds(timeout, "timeout"),
            retry=declared.policy if retry is None else retry.policy,
            key_window_ms=declared.key_window_ms,
            read=declared.read_plain if isinstance(tool, str) else declared.read,
            made=self._made,
        )

    def gather(self, *parts: Awaitable[Any], return_exceptions: bool = False) -> Awaitable[list[Any]]:
        """Several at once: calls, sleeps, or coroutines of your own that use this context.

        Waits for all and gives the results in order; raises the first failure by position, or gives the failures in
        place of results with `return_exceptions`.
        """
        accepted: list[Intent | Coroutine[Intent, Any, Any]] = []
        for part in parts:
            if isinstance(part, _Made):
                _take(part.made, part)
                accepted.append(part)
            elif inspect.iscoroutine(part):
                accepted.append(part)
            else:
                raise UsageError(
                    f"ctx.gather got {type(part).__name__}, which is not of the context",
                    hint="give it ctx.call(...), ctx.sleep(...) or coroutines that use ctx, without await",
                )
        return _Gather(parts=tuple(accepted), return_exceptions=return_exceptions, made=self._made)

    def sleep(self, duration: timedelta) -> Awaitable[None]:
        """Waits, also through restarts: `await ctx.sleep(timedelta(hours=2))`. Negative durations are over at once."""
        if not isinstance(duration, timedelta):
            raise UsageError(f"ctx.sleep({duration!r})", hint="give a timedelta, as in timedelta(seconds=5)")
        wait = milliseconds(max(duration, timedelta()), "ctx.sleep")
        return _Sleep(until_ms=self._moment.now_ms + wait, made=self._made)

    def note(self, kind: str, data: Any = None) -> Awaitable[None]:
        """Records something for those who read the run: a plan, decision, checkpoint or thought. Never waits.

        **Raises** UsageError when `kind` is no text, or `data` has no JSON form or holds a set.
        """
        if not isinstance(kind, str):
            raise UsageError(f"ctx.note({kind!r}, ...)", hint="its kind is a word, and what belongs to it is data")
        try:
            kind = str.__str__(kind)  # of an enumeration, say
            canonical.text(kind)
            try:
                text = canonical.dumps(data)
            except MalformedError:
                text = canonical.dumps(to_jsonable_python(_ordered(data), by_alias=True, inf_nan_mode="constants"))
        except (MalformedError, PydanticSerializationError) as error:
            raise UsageError(f"the data of note {kind!r} is not JSON", hint=str(error)) from None
        return _Note(kind=kind, data=text, made=self._made)

    def now(self) -> datetime:
        """The time at which whatever the agent waited for last was recorded, in UTC. It stands still until `await`."""
        return _EPOCH + timedelta(milliseconds=self._moment.now_ms)

    @cached_property
    def random(self) -> Random:
        """Random numbers that are the same in every replay of this run, and others in every other run."""
        return Random(f"{self._seed}/random")

    def uuid(self) -> UUID:
        """A new id, the same in every replay of this run."""
        return UUID(int=self._ids.getrandbits(128), version=4)

    @property
    def replaying(self) -> bool:
        """Whether the code runs along recorded history. For logs and metrics only: what it decides must not differ."""
        return self._moment.replaying

    def finish(self) -> None:
        """For whoever runs the agent, at its end. **Raises** UsageError when it asked for something without `await`."""
        for intent in self._made.values():
            raise UsageError(f"the agent never awaited its {_words(intent)}", hint="put `await` in front of it")

    @cached_property
    def _ids(self) -> Random:
        return Random(f"{self._seed}/uuid")


# Steps as the context makes them: they know whether they were awaited. Awaited twice, a call would be made twice,
# and never awaited not at all; both are mistakes that nobody would see.


def _take(made: dict[int, Intent], intent: Intent) -> None:
    if made.pop(id(intent), None) is not intent:
        raise UsageError(f"the agent awaits the same {_words(intent)} twice", hint="keep the result in a variable")


def _words(intent: Intent) -> str:
    return "gather" if isinstance(intent, Gather) else describe(intent)


class _Made(Intent):
    __slots__ = ()
    made: dict[int, Intent]

    def __post_init__(self) -> None:
        self.made[id(self)] = self

    def __await__(self) -> Generator[Intent, Any, Any]:
        _take(self.made, self)
        return (yield self)


@dataclass(slots=True, eq=False, kw_only=True)
class _Call(_Made, Call):
    made: dict[int, Intent]


@dataclass(slots=True, eq=False, kw_only=True)
class _Sleep(_Made, Sleep):
    made: dict[int, Intent]


@dataclass(slots=True, eq=False, kw_only=True)
class _Note(_Made, Note):
    made: dict[int, Intent]


@dataclass(slots=True, eq=False, kw_only=True)
class _Gather(_Made, Gather):
    made: dict[int, Intent]


def _ordered(data: Any) -> Any:
    """The data, if no set in it would come out in another order next time."""
    if isinstance(data, set | frozenset):
        raise MalformedError("a set has no order that a replay could repeat", hint="sort it into a list")
    if isinstance(data, dict):
        return {key: _ordered(value) for key, value in data.items()}
    return [_ordered(item) for item in data] if isinstance(data, list | tuple) else data
