"""The wire form of a type: pydantic's schema, changed so that what it writes as JSON is what it reads back."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import SchemaSerializer, SchemaValidator, core_schema

from refold.core.errors import UsageError
from refold.core.wire import canonical

Node = dict[str, Any]

_PLAIN: Final = re.compile(
    "any|none|bool|int|float|str|list|dict|typed-dict|typed-dict-field|nullable|default|literal|union"
)
"""Kinds of schemas whose values are JSON data themselves, and arrive as they are."""

_OPAQUE: Final = re.compile("cls|computed_fields|config|default|default_factory|expected|function|members|metadata")
"""Parts of a schema in which no schema is looked for: a default may be a dict that looks like one."""

_NO_KEYS: Final = re.compile("list|tuple|set|frozenset|dict|model|dataclass|typed-dict|named-tuple|deque")
_CONSTANT: Final = (list, dict, set, frozenset, tuple)
"""Factories of defaults that are the same each time."""

_BASE64: Final = "data:;base64,"
"""Begins the text of bytes that are no UTF-8, and of those that begin so themselves."""


class WireForm:
    """`schema` is the wire form of a type. **Raises** UsageError, with the field's name, where there is none.

    `plain`: a value that is JSON data arrives as it is, without a look at it. `ordered`: it takes sequences, and
    pydantic takes a set for one. `drawn`: reading one text may give other values each time, as of a clock.
    """

    def __init__(self, schema: Any, what: str) -> None:
        self._what = what
        self.plain, self.ordered, self.drawn = True, False, False
        self.schema: Any = self._walk(schema, (), {})

    def _walk(self, part: Any, path: tuple[str, ...], config: Mapping[str, Any]) -> Any:
        if isinstance(part, list | tuple):
            return type(part)(self._walk(each, path, config) for each in part)
        if not isinstance(part, dict):
            return part
        if not isinstance(kind := part.get("type"), str):
            return {name: self._walk(each, (*path, str(name)), config) for name, each in part.items()}
        if kind == "dataclass-field":
            path = (*path, part["name"])
        own = part.get("config", config)
        node = {key: each if _OPAQUE.fullmatch(key) else self._walk(each, path, own) for key, each in part.items()}
        self.plain &= _PLAIN.fullmatch(kind) is not None
        self.ordered |= kind in ("any", "list", "tuple", "generator", "deque")
        factory = node.get("default_factory")
        self.drawn |= kind.startswith("function") or bool(node.get("post_init") or node.get("custom_init"))
        self.drawn |= factory is not None and factory not in _CONSTANT
        if _masks(node.get("function")):
            self._refuse(path, "a secret is masked when it is written", "use refold.Secret: docs/guides/secrets.md")
        return self._changed(kind, node, path, own)

    def _changed(self, kind: str, node: Node, path: tuple[str, ...], config: Mapping[str, Any]) -> Node:
        if kind == "any":
            node.setdefault("serialization", _OPEN)
        elif kind in ("set", "frozenset"):
            node.setdefault("serialization", _SORTED)
        elif kind == "generator":  # or it is empty when it is read the second time
            node |= {"type": "list", "strict": False}
        elif kind == "bytes" and not config.keys() & {"ser_json_bytes", "val_json_bytes"}:
            text: Any = core_schema.no_info_after_validator_function(_bytes_of, core_schema.str_schema())
            read: Any = core_schema.chain_schema([text, node])
            node = dict(core_schema.json_or_python_schema(read, node, serialization=_BYTES))
        elif kind == "dict" and _NO_KEYS.fullmatch(keys := node.get("keys_schema", {}).get("type", "")):
            self._refuse(path, f"keys of a dict that are of type {keys} cannot be read back", "use texts or numbers")
        elif kind in ("enum", "literal"):
            self._try_all(node, path)
        elif kind.endswith("-field"):
            self._field(node, path, config)
        return node

    def _field(self, node: Node, path: tuple[str, ...], config: Mapping[str, Any]) -> None:
        required = node["schema"]["type"] != "default" and node.get("required", True)
        if node.get("init_only") and required:
            self._refuse(path, "an InitVar is not part of the value", "give it a default, or make it a field")
        if node.get("serialization_exclude") and required:
            self._refuse(path, "a field that is excluded is missing when it is read", "give it a default")
        if node.get("init") is False:  # it is made anew where it is read
            node["serialization_exclude"] = True
        alias, reads = None, node.get("validation_alias")
        by_name = config.get("validate_by_name") or config.get("populate_by_name")
        if reads is not None and config.get("validate_by_alias") is not False:
            paths = [[reads]] if isinstance(reads, str) else reads if isinstance(reads[0], list) else [reads]
            alias = next((each[0] for each in paths if len(each) == 1), None)
            if alias is None and not by_name:
                self._refuse(path, "it is read from a place inside of another (AliasPath)", "give it AliasChoices")
        node.pop("serialization_alias", None)
        if alias is not None:
            node["serialization_alias"] = alias

    def _try_all(self, node: Node, path: tuple[str, ...]) -> None:
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
        raise UsageError(f"{self._what}: {'.'.join(path)}{': ' if path else ''}{problem}", hint=hint)


def _masks(function: Any) -> bool:
    return getattr(function, "__module__", "") == "pydantic.types" and "secret" in function.__name__


def _open(value: Any, handler: Any, info: Any) -> Any:
    if isinstance(info.context, dict):  # has what no type is declared for: it arrives as JSON data
        info.context[id(value)] = value
    return handler(value)


def _sorted(value: Any, handler: Any) -> Any:
    return sorted(handler(value), key=lambda item: canonical.dumps(item))


def _bytes_of(text: str) -> bytes:
    return b64decode(text.removeprefix(_BASE64), validate=True) if text.startswith(_BASE64) else text.encode()


def _text_of(value: bytes) -> str:
    try:
        if not (text := value.decode()).startswith(_BASE64):
            return text
    except UnicodeDecodeError:
        pass
    return _BASE64 + b64encode(value).decode()


_OPEN: Final = core_schema.wrap_serializer_function_ser_schema(_open, info_arg=True)
_SORTED: Final = core_schema.wrap_serializer_function_ser_schema(_sorted, when_used="json")
_BYTES: Final = core_schema.plain_serializer_function_ser_schema(_text_of, when_used="json")
