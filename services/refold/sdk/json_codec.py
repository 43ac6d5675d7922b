"""Python values as canonical JSON and back, in one wire form per declared type."""

import inspect
import math
import re
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from types import SimpleNamespace
from typing import Annotated, Any, Final, NotRequired, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaSerializer, SchemaValidator, core_schema
from typing_extensions import TypedDict  # typing's own is refused by pydantic before Python 3.12

from refold.core.errors import MalformedError, UsageError, text_of
from refold.core.wire import canonical
from refold.sdk.secret import Secrets

_ONE_FORM: Final = "a value is written as JSON and read again: declare the type that it has"
Node = dict[str, Any]

_PLAIN: Final = re.compile(
    "any|none|bool|int|float|str|list|dict|typed-dict|typed-dict-field|nullable|default|literal|union"
)
"""Kinds of schemas whose values are JSON data, and arrive as they are."""

_OPAQUE: Final = re.compile("cls|computed_fields|config|default|default_factory|expected|function|members|metadata")
"""Parts of a schema that contain no schemas: a default may be a dict that looks like one."""

_NO_KEYS: Final = re.compile("list|tuple|set|frozenset|dict|model|dataclass|typed-dict|named-tuple|deque")
_CONSTANT: Final = (list, dict, set, frozenset, tuple)

_BASE64: Final = "data:;base64,"
"""Prefix of the text of bytes that are no UTF-8, or that begin so themselves."""


class WireForm:
    """Pydantic's core `schema` of a type, changed so that values have one JSON form. **Raises** UsageError with `owner`
    and field if it has none. `plain`: JSON data arrives unchanged, so values need no check. `ordered`: it takes
    sequences, for which pydantic accepts sets. `drawn`: each reading of one text may give other values."""

    def __init__(self, schema: Any, owner: str) -> None:
        self._owner = owner
        self.plain, self.ordered, self.drawn = True, False, False
        self.schema: Any = self._walk(schema, (), {})

    def _walk(self, part: Any, path: tuple[str, ...], config: Mapping[str, Any]) -> Any:
        """Changed copy of a part of the schema; `path` are the fields above it, for errors."""
        if isinstance(part, list | tuple):
            return type(part)(self._walk(child, path, config) for child in part)
        if not isinstance(part, dict):
            return part
        if not isinstance(kind := part.get("type"), str):
            return {name: self._walk(child, (*path, str(name)), config) for name, child in part.items()}
        if kind == "dataclass-field":
            path = (*path, part["name"])
        own = part.get("config", config)
        node = {key: child if _OPAQUE.fullmatch(key) else self._walk(child, path, own) for key, child in part.items()}
        self._note_traits(kind, node)
        if _masks_secret(node.get("function")):
            self._refuse(path, "a secret is masked when it is written", "use refold.Secret: docs/guides/secrets.md")
        return self._in_wire_form(kind, node, path, own)

    def _note_traits(self, kind: str, node: Node) -> None:
        self.plain &= _PLAIN.fullmatch(kind) is not None
        self.ordered |= kind in ("any", "list", "tuple", "generator", "deque")
        factory = node.get("default_factory")
        self.drawn |= kind.startswith("function") or bool(node.get("post_init") or node.get("custom_init"))
        self.drawn |= factory is not None and factory not in _CONSTANT

    def _in_wire_form(self, kind: str, node: Node, path: tuple[str, ...], config: Mapping[str, Any]) -> Node:
        if kind == "any":
            node.setdefault("serialization", _OPEN)
        elif kind in ("set", "frozenset"):
            node.setdefault("serialization", _SORTED)
        elif kind == "generator":  # or it is empty when it is read the second time
            node |= {"type": "list", "strict": False}
        elif kind == "bytes" and not config.keys() & {"ser_json_bytes", "val_json_bytes"}:
            text: Any = core_schema.no_info_after_validator_function(_bytes_from_text, core_schema.str_schema())
            read: Any = core_schema.chain_schema([text, node])
            node = dict(core_schema.json_or_python_schema(read, node, serialization=_BYTES))
        elif kind == "dict" and _NO_KEYS.fullmatch(keys := node.get("keys_schema", {}).get("type", "")):
            self._refuse(path, f"keys of a dict that are of type {keys} cannot be read back", "use texts or numbers")
        elif kind in ("enum", "literal"):
            self._check_round_trips(node, path)
        elif kind.endswith("-field"):
            self._adapt_field(node, path, config)
        return node

    def _adapt_field(self, node: Node, path: tuple[str, ...], config: Mapping[str, Any]) -> None:
        required = node["schema"]["type"] != "default" and node.get("required", True)
        if node.get("init_only") and required:
            self._refuse(path, "an InitVar is not part of the value", "give it a default, or make it a field")
        if node.get("serialization_exclude") and required:
            self._refuse(path, "a field that is excluded is missing when it is read", "give it a default")
        if node.get("init") is False:  # it is made again by the reader
            node["serialization_exclude"] = True
        node.pop("serialization_alias", None)
        if config.get("validate_by_alias") is not False and (alias := self._written_alias(node, path, config)):
            node["serialization_alias"] = alias

    def _written_alias(self, node: Node, path: tuple[str, ...], config: Mapping[str, Any]) -> Any:
        if not (reads := node.get("validation_alias")):
            return None
        paths = [[reads]] if isinstance(reads, str) else reads if isinstance(reads[0], list) else [reads]
        alias = next((route[0] for route in paths if len(route) == 1), None)
        if alias is None and not (config.get("validate_by_name") or config.get("populate_by_name")):
            self._refuse(path, "it is read from a place inside of another (AliasPath)", "give it AliasChoices")
        return alias

    def _check_round_trips(self, node: Node, path: tuple[str, ...]) -> None:
        values = node["members"] if node["type"] == "enum" else node["expected"]
        self.plain &= all(type(value) in (str, int, bool, type(None)) for value in values)
        write, read = SchemaSerializer(node).to_python, SchemaValidator(node).validate_json
        for value in values:
            try:
                back = read(canonical.dumps(write(value, mode="json", warnings=False)))
            except Exception:  # noqa: BLE001 - the user's code; whatever it raises, the value does not come back
                back = None if value is not None else ...
            if back != value or type(back) is not type(value):
                self._refuse(path, f"{value!r} cannot be read back", "let it be a text or a number")

    def _refuse(self, path: tuple[str, ...], problem: str, hint: str) -> None:
        raise UsageError(f"{self._owner}: {'.'.join(path)}{': ' if path else ''}{problem}", hint=hint)


def _masks_secret(function: Any) -> bool:
    return getattr(function, "__module__", "") == "pydantic.types" and "secret" in function.__name__


def _note_open_value(value: Any, handler: Any, info: Any) -> Any:
    if isinstance(info.context, dict):  # ids of parts without a declared type, which arrive as JSON data
        info.context[id(value)] = value
    return handler(value)


def _sorted_set(value: Any, handler: Any) -> Any:
    return sorted(handler(value), key=canonical.dumps)


def _bytes_from_text(text: str) -> bytes:
    return b64decode(text.removeprefix(_BASE64), validate=True) if text.startswith(_BASE64) else text.encode()


def _text_from_bytes(value: bytes) -> str:
    with suppress(UnicodeDecodeError):
        if not (text := value.decode()).startswith(_BASE64):
            return text
    return _BASE64 + b64encode(value).decode()


_OPEN: Final = core_schema.wrap_serializer_function_ser_schema(_note_open_value, info_arg=True)
_SORTED: Final = core_schema.wrap_serializer_function_ser_schema(_sorted_set, when_used="json")
_BYTES: Final = core_schema.plain_serializer_function_ser_schema(_text_from_bytes, when_used="json")

_SCALARS: Final = (bool, str, bytes, int, float)
_MISSING: Final = object()
_AS_JSON: Final[dict[str, Any]] = {"mode": "json", "by_alias": True, "round_trip": True, "warnings": False}


class JsonCodec:
    """Values of a type annotation as JSON, validated when written and when read; `write` skips the first. They arrive
    as they were sent, or UsageError names the place: the text is read and compared, unless the type is plain JSON data.
    `sparse`: `dump` leaves out unset fields of models. **Raises** UsageError for a type without a JSON form."""

    def __init__(self, annotation: Any, owner: str, *, sparse: bool = False) -> None:
        self.owner, self._sparse = owner, sparse
        try:
            adapter = TypeAdapter(annotation)
            self.schema: dict[str, Any] = _with_named_floats(adapter.json_schema())  # a default may be infinite
        except (PydanticUserError, NameError) as error:
            raise UsageError(f"{owner}: the type has no JSON form: {str(error).partition(chr(10))[0]}") from error
        self.form = WireForm(adapter.core_schema, owner)
        # Models have their own validator and serializer, which differ from the wire form.
        validator = SchemaValidator(self.form.schema, None, _use_prebuilt=False)
        self._plain = SchemaSerializer(self.form.schema, None, _use_prebuilt=False).to_python
        self._direct = self.form.plain and not self.form.ordered
        self.check, self._check_json = validator.validate_python, validator.validate_json

    def dump(self, value: Any) -> str:
        """Return a value as canonical JSON. **Raises** UsageError if it has another type or would arrive changed."""
        try:
            checked = self.check(value)
            if self._direct:
                try:
                    return canonical.dumps(checked)
                except MalformedError:
                    pass  # keys that are numbers, or NaN
            elif self.form.ordered:
                _refuse_unordered(value, checked, ())
            return self.write(checked, sparse=self._sparse)
        except (ValidationError, RecursionError, MalformedError, _ArrivesChanged) as error:
            raise self._refused(error) from None
        except (MemoryError, UsageError):
            raise
        except Exception as error:
            raise UsageError(f"{self.owner}: {_validator_error(error)}") from error

    def write(self, checked: Any, *, sparse: bool = False) -> str:
        """Return a value, validated before, as canonical JSON. **Raises** UsageError if it would arrive changed."""
        if self.form.plain:
            with suppress(MalformedError):  # the comparison below finds the place
                return canonical.dumps(checked)
        try:
            return self._written_and_compared(checked, sparse)
        except (MemoryError, UsageError):
            raise
        except (ValueError, RecursionError, MalformedError) as error:  # pydantic's errors are ValueErrors
            raise self._refused(error) from None
        except Exception as error:
            raise UsageError(f"{self.owner}: {_validator_error(error)}") from error

    def load(self, text: str, secrets: Secrets | None = None) -> Any:
        """Return the value of a JSON text; `secrets` collects its secrets. **Raises** UsageError for another type."""
        try:
            return self._check_json(text, context=secrets)
        except ValidationError as error:
            raise self._refused(error) from None
        except MemoryError:
            raise
        except Exception as error:
            raise UsageError(f"{self.owner}: {_validator_error(error)}") from error

    def means(self, text: str, other: str) -> bool:
        """True if two texts are read as the same value, though an older version may have written one."""
        try:
            return _wire_text(self._as_wire(self.load(text))) == _wire_text(self._as_wire(self.load(other)))
        except (UsageError, MalformedError, ValueError, RecursionError):
            return False

    def _as_wire(self, value: Any, open_: dict[int, Any] | None = None) -> Any:
        return self._plain(value, **_AS_JSON, context=open_)

    def _written_and_compared(self, value: Any, sparse: bool) -> str:
        open_: dict[int, Any] = {}
        wire = full = self._as_wire(value, open_)
        if sparse and (few := self._plain(value, **_AS_JSON, exclude_unset=True)) != full:
            with suppress(ValidationError):  # its tag of a union was left out, say
                wire = _without_unset(full, few, self._as_wire(self._check_json(_wire_text(few))))
        text = _wire_text(wire)
        read = self._check_json(text)
        _compare(value, read, open_, ())
        if _wire_text(again := self._as_wire(read)) != _wire_text(full):
            _compare(full, again, {}, ())
        return text

    def _refused(self, error: Exception) -> UsageError:
        if isinstance(error, _ArrivesChanged):
            return UsageError(f"{self.owner}: {error}", hint=_ONE_FORM)
        reason = reasons(error) if isinstance(error, ValidationError) else f"not JSON: {text_of(error)}"
        return UsageError(f"{self.owner}: {reason}")


class Arguments:
    """Parameters of a function as one JSON object by name, with defaults filled in. `leave`: parameters that are not
    the caller's. `context`: parameters whose keys begin with `$`, which no edit of a call can change. **Raises**
    UsageError for `*args`, `**kwargs` and positional-only parameters."""

    def __init__(
        self, function: Callable[..., Any], owner: str, *, leave: Iterable[str] = (), context: Iterable[str] = ()
    ) -> None:
        self.owner = owner
        left, beside = set(leave), set(context)
        parameters = _parameters(function, owner, left)
        self.hints = hints(function, owner, leave=left)
        self.names = tuple(p.name for p in parameters)
        self._positional = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._keys = {name: f"${name}" if name in beside else name for name in self.names}
        self._names = {key: name for name, key in self._keys.items()}
        self.shape = JsonCodec(self._typed_dict(), owner, sparse=True)
        self._check_defaults()

    def _typed_dict(self) -> Any:
        types = {name: self.hints.get(name, Any) for name in self.names}
        for name, default in list(self._defaults.items()):
            if isinstance(default, FieldInfo):  # pydantic fills in the default of an annotation
                types[name] = Annotated[types[name], self._defaults.pop(name)]
        fields = {self._keys[n]: NotRequired[kind] if n in self._defaults else kind for n, kind in types.items()}
        # A TypedDict and not a model: any parameter name is allowed, and reading gives the keywords to call with.
        kind = TypedDict("Arguments", fields)  # type: ignore[misc]
        kind.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
        return kind

    def canonical(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the arguments of a call as canonical JSON. **Raises** UsageError with the mismatch."""
        arguments = {**self._defaults, **dict(zip(self._positional, args, strict=False)), **kwargs}
        if len(args) > len(self._positional):
            raise UsageError(f"{self.owner}: {len(args)} positional arguments, and it takes {len(self._positional)}")
        if args and not kwargs.keys().isdisjoint(self._positional[: len(args)]):
            twice = ", ".join(sorted(kwargs.keys() & set(self._positional[: len(args)])))
            raise UsageError(f"{self.owner}: {twice} given twice")
        return self.shape.dump({self._keys.get(name, name): value for name, value in arguments.items()})

    def load(self, text: str, secrets: Secrets | None = None) -> dict[str, Any]:
        """Return the keywords for the function; `secrets` collects the secrets they name. **Raises** UsageError."""
        try:
            # pydantic takes the last of two equal keys, NaN and any integer. All other code refuses these: a tool could
            # be called with other arguments than were judged.
            canonical.parse(text)
        except MalformedError as error:
            raise UsageError(f"{self.owner}: {error.message}", hint=error.hint) from None
        arguments: dict[str, Any] = self.shape.load(text, secrets)
        return {self._names[key]: value for key, value in arguments.items()}

    def _check_defaults(self) -> None:
        try:
            self.shape.check({self._keys[name]: default for name, default in self._defaults.items()})
        except ValidationError as error:
            for wrong in error.errors(include_url=False, include_context=False, include_input=False):
                if len(place := wrong["loc"]) > 1 or wrong["type"] != "missing":
                    problem = f"{self.owner}: parameter {place[0]} has a default that does not fit: {wrong['msg']}"
                    raise UsageError(problem, hint="write `int | None = None`, say") from None


def _parameters(function: Callable[..., Any], owner: str, left: set[str]) -> list[inspect.Parameter]:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in left]
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"{owner}: parameter {parameter} has no name of its own", hint="name every parameter")
    return parameters


def hints(function: Callable[..., Any], owner: str, *, leave: Iterable[str] = ()) -> dict[str, Any]:
    """Annotations of a function as types. **Raises** UsageError for an unknown name."""
    annotations = {name: hint for name, hint in function.__annotations__.items() if name not in set(leave)}
    # A decorator copies annotations as text: their names belong to the module where they were written.
    written = getattr(inspect.unwrap(function), "__globals__", function.__globals__)
    try:
        return get_type_hints(SimpleNamespace(__annotations__=annotations), written, include_extras=True)
    except NameError as error:
        hint = "define or import the type at module level, above the function"
        raise UsageError(f"{owner}: {error}", hint=hint) from error


def reasons(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else one["msg"] for one in problems[:5]]
    return "; ".join(lines) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")


def _validator_error(error: BaseException) -> str:
    return f"its validator raised {type(error).__name__}: {text_of(error)}"


def json_of(value: Any, owner: str) -> str:
    """Canonical JSON of a value without a declared type. **Raises** UsageError, with `owner`, if it has none."""
    try:
        return canonical.dumps(value)
    except MalformedError:
        return JsonCodec(Any, f"the {owner} is not JSON").dump(value)


# Comparison of sent and read values


def _parts(value: Any) -> dict[Any, Any] | None:
    """Parts of a value by key, index or name; None if it has none."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple | deque):
        return dict(enumerate(value))
    if isinstance(value, BaseModel):
        own = {name: value.__dict__.get(name) for name in type(value).model_fields}
        return own | (value.__pydantic_extra__ or {}) | (value.__pydantic_private__ or {})
    identical = getattr(type(value), "__eq__", None) is object.__eq__
    if isinstance(value, Enum | type) or not (is_dataclass(value) or identical):
        return None
    return _attributes(value)


def _attributes(value: Any) -> dict[Any, Any]:
    # The class has the value of a field that was left to its default, where a dataclass has an __init__ of its own.
    own = {field.name: getattr(value, field.name, _MISSING) for field in fields(value)} if is_dataclass(value) else {}
    kind, parts = type(value), getattr(value, "__dict__", {})
    return own | {n: part for n, part in parts.items() if not isinstance(getattr(kind, n, None), cached_property)}


class _ArrivesChanged(ValueError):  # noqa: N818 - a part of an error, which JsonCodec raises
    def __init__(self, path: tuple[Any, ...], problem: str = "it would arrive as another value") -> None:
        super().__init__(": ".join(filter(None, (".".join(map(str, path)), problem))))


_NO_ORDER: Final = "a set has no order that a replay could repeat: sort it into a list, or declare a set"


def _refuse_unordered(sent: Any, checked: Any, path: tuple[Any, ...]) -> None:
    if isinstance(sent, set | frozenset) and isinstance(checked, list | tuple | deque):
        raise _ArrivesChanged(path, _NO_ORDER)
    if sent is not checked and isinstance(sent, dict | list | tuple):
        parts = _parts(checked) or {}
        for name, part in (_parts(sent) or {}).items():
            _refuse_unordered(part, parts.get(name, ()), (*path, name))


def _compare(sent: Any, read: Any, open_: dict[int, Any], path: tuple[Any, ...]) -> None:
    """Refuse a value that arrives changed. `open_`: ids of parts without a declared type, which arrive as JSON data."""
    if isinstance(sent, _SCALARS) and not isinstance(sent, Enum):
        if not _same_scalar(sent, read):
            raise _ArrivesChanged(path)
    elif id(sent) in open_:
        _refuse_non_json(sent, path)
    elif not _same_kind(sent, read):
        raise _ArrivesChanged(path, f"a {type(sent).__name__} would arrive as a {type(read).__name__}")
    elif (sent_parts := _parts(sent)) is None or (read_parts := _parts(read)) is None:
        if sent != read:
            raise _ArrivesChanged(path)
    else:
        _refuse_unset(sent, read, path)
        for name in sent_parts.keys() ^ read_parts.keys():
            raise _ArrivesChanged((*path, name))
        for name, part in sent_parts.items():
            _compare(part, read_parts[name], open_, (*path, name))


def _refuse_unset(sent: Any, read: Any, path: tuple[Any, ...]) -> None:
    if isinstance(sent, BaseModel) and (unset := sent.model_fields_set - read.model_fields_set):
        raise _ArrivesChanged((*path, min(unset)), "it is not written, and would be missing")


def _same_scalar(sent: Any, read: Any) -> bool:
    return (sent == read and isinstance(sent, bool) == isinstance(read, bool)) or (sent != sent and read != read)


def _same_kind(sent: Any, read: Any) -> bool:
    # A Sequence arrives as a list, and a Mapping as a dict.
    sequences = type(sent) is tuple and type(read) is list
    return type(sent) is type(read) or sequences or (isinstance(sent, Mapping) and type(read) is dict)


def _refuse_non_json(value: Any, path: tuple[Any, ...]) -> None:
    if isinstance(value, set | frozenset):
        raise _ArrivesChanged(path, _NO_ORDER)
    if isinstance(value, float) and not math.isfinite(value):
        raise _ArrivesChanged(path, f"JSON has no number for {value}")
    for name, part in (_parts(value) or {}).items():
        if isinstance(value, Mapping) and not isinstance(name, str):
            raise _ArrivesChanged(path, f"the key {name!r} is no text, and would arrive as one")
        _refuse_non_json(part, (*path, name))


def _without_unset(full: Any, few: Any, again: Any) -> Any:
    """JSON data of `full` without unset fields (`few`), except those that a reader fills otherwise (`again`)."""
    kinds = {type(full), type(few), type(again)}
    if kinds == {dict}:
        # A drawn default keeps its value: reading would draw another.
        filled = {n: _without_unset(full[n], few[n], again.get(n)) for n in full if n in few}
        return {n: filled.get(n, part) for n, part in full.items() if n in few or again.get(n, _MISSING) != part}
    if kinds == {list} and len(full) == len(again):
        return [_without_unset(*parts) for parts in zip(full, few, again, strict=True)]
    return few if full == again else full


def _wire_text(wire: Any) -> str:
    try:
        return canonical.dumps(wire)
    except MalformedError:
        return canonical.dumps(_with_named_floats(wire))


def _with_named_floats(wire: Any) -> Any:
    if isinstance(wire, float) and not math.isfinite(wire):
        return "NaN" if wire != wire else "Infinity" if wire > 0 else "-Infinity"
    if isinstance(wire, dict):
        return {name: _with_named_floats(part) for name, part in wire.items()}
    return [_with_named_floats(part) for part in wire] if isinstance(wire, list) else wire
