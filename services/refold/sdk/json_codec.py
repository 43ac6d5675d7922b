"""Python values as canonical JSON and back: what a signature says, checked by pydantic in both directions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final, NotRequired, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import CoreConfig, SchemaSerializer
from typing_extensions import TypedDict  # typing's own is refused by pydantic before Python 3.12

from refold.core.errors import MalformedError, UsageError, text_of
from refold.core.wire import canonical
from refold.sdk.secret import Secrets

_CONSTANTS: Final[CoreConfig] = {"ser_json_inf_nan": "constants"}
"""Keeps NaN what it is, for `canonical` to refuse; pydantic would write null without a word."""


class JsonCodec:
    """A type annotation that has a JSON form. `what` names its values in errors.

    **Raises** UsageError for a type without a JSON form, and for sets: their order differs from process to process, so
    a replay would see other values than the run did.
    """

    def __init__(self, annotation: Any, what: str) -> None:
        self.what = what
        try:
            adapter = TypeAdapter(annotation)
            self.schema: dict[str, Any] = adapter.json_schema()
        except (PydanticUserError, NameError) as error:
            raise UsageError(f"{what}: the type has no JSON form: {str(error).partition(chr(10))[0]}") from error
        if _holds_set(self.schema):
            raise UsageError(f"{what}: a set has no order that a replay could repeat", hint="use a list or a tuple")
        self._check = adapter.validator.validate_python
        self._check_json = adapter.validator.validate_json
        self._plain = SchemaSerializer(adapter.core_schema, _CONSTANTS).to_python

    def dump(self, value: Any) -> str:
        """The canonical JSON of a value. **Raises** UsageError: it is not of this type, or has no JSON form."""
        try:
            return canonical.dumps(self._plain(self._check(value), mode="json", by_alias=True, warnings=False))
        except ValidationError as error:
            raise UsageError(f"{self.what}: {reasons(error)}") from None
        except (ValueError, RecursionError, MalformedError) as error:  # pydantic's errors are ValueErrors
            raise UsageError(f"{self.what}: not JSON: {text_of(error)}") from None
        except MemoryError:
            raise
        except Exception as error:
            raise UsageError(f"{self.what}: {_raised(error)}") from error

    def load(self, text: str, secrets: Secrets | None = None) -> Any:
        """The value of a JSON text; `secrets` hears of those that it names. **Raises** UsageError: another type."""
        try:
            return self._check_json(text, context=secrets)
        except ValidationError as error:
            raise UsageError(f"{self.what}: {reasons(error)}") from None
        except MemoryError:
            raise
        except Exception as error:
            raise UsageError(f"{self.what}: {_raised(error)}") from error


class Arguments:
    """The parameters of a function as one JSON object by parameter name; defaults are filled in.

    `leave` are parameters that do not come from the caller. Those of the `context` of a call have a `$` before their
    names there: people who edit a call cannot change them. **Raises** UsageError for `*args`, `**kwargs` and
    positional-only parameters: they have no name.
    """

    def __init__(
        self, function: Callable[..., Any], what: str, *, leave: Iterable[str] = (), context: Iterable[str] = ()
    ) -> None:
        self.what = what
        left, beside = set(leave), set(context)
        parameters = _parameters(function, what, left)
        self.hints = hints(function, what, leave=left)
        self.names = tuple(p.name for p in parameters)
        self._positional = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        types = {name: self.hints.get(name, Any) for name in self.names}
        self._told = {name: f"${name}" if name in beside else name for name in self.names}
        self._names = {told: name for name, told in self._told.items()}
        fields = {
            self._told[name]: NotRequired[kind] if name in self._defaults else kind for name, kind in types.items()
        }
        # A TypedDict and not a model: any parameter name is allowed, and reading gives the keywords to call with.
        kind = TypedDict("Arguments", fields)  # type: ignore[misc]
        kind.__pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)  # type: ignore[attr-defined]
        self.shape = JsonCodec(kind, what)

    def canonical(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The arguments of a call as canonical JSON. **Raises** UsageError, naming what is wrong with them."""
        given = {**self._defaults, **dict(zip(self._positional, args, strict=False)), **kwargs}
        if len(args) > len(self._positional):
            raise UsageError(f"{self.what}: {len(args)} positional arguments, and it takes {len(self._positional)}")
        if args and not kwargs.keys().isdisjoint(self._positional[: len(args)]):
            twice = ", ".join(sorted(kwargs.keys() & set(self._positional[: len(args)])))
            raise UsageError(f"{self.what}: {twice} given twice")
        return self.shape.dump({self._told.get(name, name): value for name, value in given.items()})

    def load(self, text: str, secrets: Secrets | None = None) -> dict[str, Any]:
        """The keywords to call the function with; `secrets` hears of those that they name. **Raises** UsageError.

        pydantic's parser takes the last of two equal keys, NaN and any integer: what the rest of Refold refuses is
        refused here too, or a tool could be called with something else than was judged.
        """
        try:
            canonical.parse(text)
        except MalformedError as error:
            raise UsageError(f"{self.what}: {error.message}", hint=error.hint) from None
        found: dict[str, Any] = self.shape.load(text, secrets)
        return {self._names[told]: value for told, value in found.items()}


def _parameters(function: Callable[..., Any], what: str, left: set[str]) -> list[inspect.Parameter]:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in left]
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"{what}: parameter {parameter} has no name of its own", hint="name every parameter")
    return parameters


def hints(function: Callable[..., Any], what: str, *, leave: Iterable[str] = ()) -> dict[str, Any]:
    """The annotations of a function as types. **Raises** UsageError when one names something unknown."""
    wanted = {name: hint for name, hint in function.__annotations__.items() if name not in set(leave)}
    # A decorator takes annotations over as text: their names are those of the module where they were written.
    written = getattr(inspect.unwrap(function), "__globals__", function.__globals__)
    try:
        return get_type_hints(SimpleNamespace(__annotations__=wanted), written, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"{what}: {error}", hint="define or import the type at module level, above the function"
        ) from error


def reasons(error: ValidationError) -> str:
    """Problems, in one line: at most five places, each with its reason."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else one["msg"] for one in found[:5]]
    return "; ".join(lines) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")


def _raised(error: BaseException) -> str:
    return f"its validator raised {type(error).__name__}: {text_of(error)}"


def _holds_set(schema: Any) -> bool:
    if isinstance(schema, dict):
        return schema.get("uniqueItems") is True or any(map(_holds_set, schema.values()))
    return isinstance(schema, list) and any(map(_holds_set, schema))
