"""Base of all read models, and the conversion of log values to JSON data."""

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from refold.core.errors import MalformedError
from refold.core.wire import canonical
from refold.core.wire.blobs import is_pointer

Data = dict[str, Any]


class ReadModel(BaseModel):
    """A read model: fields as `--json` prints them, times as properties in UTC."""

    model_config = ConfigDict(frozen=True)

    def dump(self) -> Data:
        """Fields in order, by their names in JSON."""
        return self.model_dump(by_alias=True)


def utc_of(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def plain(value: Any) -> Any:
    """JSON data of models, dataclasses and named tuples by field, of bytes as hex."""
    # First the types of most values: pages compare large data.
    if value is None or type(value) in (str, int, bool, float):
        return value
    if isinstance(value, ReadModel):
        return plain(value.dump())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple | set | frozenset) else value


def split_args(args: Any) -> tuple[Any, Data]:
    """Arguments of a call, and those that a framework has added to them, whose names begin with `$`."""
    if not isinstance(args, dict):
        return args, {}
    own, added = ({name: args[name] for name in args if (name[:1] == "$") == of} for of in (False, True))
    return own, added


class Pointing(str):
    """Pointer to a large value; a user's text that only looks like one is a plain `str`."""

    __slots__ = ()


def json_text(text: str) -> Any:
    """Data of a JSON text from a record; invalid JSON stays text, or becomes a `Pointing`."""
    try:
        # No service writes such depth; of a forged text it would end a reader by a RecursionError.
        canonical.refuse_depth(text)
        return json.loads(text) if text else None
    except (ValueError, MalformedError):
        return Pointing(text) if is_pointer(text) else text
