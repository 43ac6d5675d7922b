"""An agent: a coroutine over its context, with input and result in JSON."""

import inspect
from collections.abc import Coroutine, Mapping
from datetime import timedelta
from functools import cached_property
from types import FunctionType
from typing import Any

from pydantic import BaseModel

from refold.core.errors import MalformedError, UsageError
from refold.core.wire import canonical
from refold.sdk.budget import Budget
from refold.sdk.context import Context
from refold.sdk.determinism import scan
from refold.sdk.json_codec import Arguments, JsonCodec, hints, json_of
from refold.sdk.source import code_version, foundation, in_words, spoken

PARKED_BYTES = 180_000
"""Memory of a waiting run of pydantic-ai after four steps, without its messages."""

INSTRUMENTED = "instrumented"
"""Manifest entry of a framework that makes spans of model calls itself."""


class AgentDef:
    """A decorated agent: `async def deploy(ctx, service: str, version: str) -> Report`.

    The parameters after the context come from the run's input, an object, by name; `null` stands for `{}`. If the only
    one is a pydantic model, it takes the whole input. `retention` is the time its runs stay in the topics after their
    end, instead of the platform's setting. `budget` limits a run with the runs that it waits for; a request may make it
    smaller. `definition` has the parts of an agent that are no code, by name: model and prompt, if a framework has
    them. `version` names this code in its runs; by default it is a digest of the code. It is followed by Python, anyio
    and frameworks that the module imports: `2+py3.12+anyio4.12`. A `portable` agent, one of this package that lives for
    years, has the `version` alone: it is tested on every Python, and uses no framework.
    """

    def __init__(
        self,
        function: FunctionType,
        *,
        name: str = "",
        version: str = "",
        retention: timedelta | None = None,
        budget: Budget | None = None,
        portable: bool = False,
    ) -> None:
        if not isinstance(function, FunctionType) or not inspect.iscoroutinefunction(function):
            raise UsageError(f"agent {name or function!r} is not an async function", hint="write `async def`")
        self.function = function
        self.name = name or function.__name__
        self.retention, self.budget = retention, budget
        self._check_limits(budget, retention)
        self.declared, self._portable = version, portable
        self.definition: Mapping[str, str] = {}
        self.description = inspect.getdoc(function) or ""
        subject = f"agent {self.name}"
        parameters = list(inspect.signature(function).parameters)
        if not parameters:
            hint = "write `async def agent(ctx: Context, ...)`"
            raise UsageError(f"{subject} has no parameter for its context", hint=hint)
        context = parameters[0]
        self._arguments = Arguments(function, f"input of {subject}", leave=[context])
        self._whole = self._find_model_parameter()
        self._shape = self._whole[1] if self._whole else self._arguments.shape
        self.draws = self._shape.form.drawn
        self._result = JsonCodec(hints(function, subject, leave=[context]).get("return", Any), f"result of {subject}")
        self.result_json, self.read_result = self._result.dump, self._result.load
        scan.check(function, subject)
        self._check_portable()

    def _check_portable(self) -> None:
        if self._portable and (not self.declared or len(foundation(self._functions)) > 1):
            raise UsageError(f"agent {self.name} is not portable", hint="give it a version, and use asyncio alone")

    def _check_limits(self, budget: object, retention: timedelta | None) -> None:
        if budget is not None and not isinstance(budget, Budget):
            hint = "write budget=Budget(usd='2.50')"
            raise UsageError(f"agent {self.name} has the budget {budget!r}", hint=hint)
        if retention is not None and retention < timedelta():
            raise UsageError(f"agent {self.name} has a retention below zero", hint="write timedelta(days=30), say")

    @property
    def instrumented(self) -> bool:
        return False

    def validate_input(self, text: str) -> None:
        """Check an input (JSON). **Raises** UsageError if the agent cannot be started with it."""
        try:
            canonical.parse(text)
        except MalformedError as error:
            raise UsageError(f"input of agent {self.name}: {error.message}", hint=error.hint) from None
        self._read(text)

    def input_json(self, payload: Any) -> str:
        """Return an input as canonical JSON, without defaults. **Raises** UsageError, as `validate_input`."""
        try:
            text = canonical.dumps(payload)
        except MalformedError:
            if self._whole or isinstance(payload, Mapping):
                return self._shape.dump(payload)
            text = json_of(payload, f"input of agent {self.name}")
        self._read(text)
        return text

    def means(self, text: str, other: str) -> bool:
        """True if two texts of inputs are read as the same value; False for plain JSON data, where the texts decide."""
        return not self._shape.form.plain and self._shape.means(text, other)

    def completed(self, text: str) -> str:
        """Return an input with its drawn defaults filled in; empty if readings give the same. **Raises** UsageError if
        it does not fit, or if reading the complete form would draw again."""
        text = "{}" if text == "null" else text
        try:
            whole = self._shape.write(self._shape.load(text))
        except UsageError:
            if self._shape.means(text, text):
                return ""
            raise
        return whole if whole != text else ""

    def open(self, input_json: str, context: Context) -> Coroutine[Any, Any, Any]:
        """Return the agent's coroutine, not begun yet. **Raises** UsageError if the input does not fit."""
        _ = self.code  # scan again: its helpers may have been defined after it
        coroutine: Coroutine[Any, Any, Any] = self.function(context, **self._read(input_json))
        return coroutine

    def schema(self) -> dict[str, Any]:
        return self._shape.schema

    @cached_property
    def version(self) -> str:
        return "+".join((self.declared or self.code, *self.foundation))

    @cached_property
    def foundation(self) -> tuple[str, ...]:
        # A run that outlives its Python would stall at every upgrade.
        return () if self._portable else foundation(self._functions)

    @cached_property
    def parked_bytes(self) -> int:
        """Estimated memory of a waiting run beside its history: the objects of pydantic-ai, if it is used."""
        return PARKED_BYTES if any(name.startswith("pydantic_ai") for name in self.foundation) else 0

    def needs(self, version: str) -> str:
        """Requirements of a run that began with this version, in words; empty if it can continue here."""
        if version == self.version:
            return ""
        own = spoken(self.version)[1]
        other = {name: number for name, number in spoken(version)[1].items() if own.get(name, number) != number}
        return f"{in_words(other)} (here {in_words({name: own[name] for name in other})})" if other else ""

    @cached_property
    def code(self) -> str:
        return code_version(self._functions)

    @cached_property
    def _functions(self) -> list[FunctionType]:
        return scan.check(self.function, f"agent {self.name}")

    def _find_model_parameter(self) -> tuple[str, JsonCodec] | None:
        if len(self._arguments.names) != 1:
            return None
        name = self._arguments.names[0]
        hint = self._arguments.hints.get(name)
        is_model = isinstance(hint, type) and issubclass(hint, BaseModel)
        return (name, JsonCodec(hint, f"input of agent {self.name}", sparse=True)) if is_model else None

    def _read(self, text: str) -> dict[str, Any]:
        text = "{}" if text == "null" else text
        if self._whole:
            name, shape = self._whole
            return {name: shape.load(text)}
        return self._arguments.load(text)
