"""SQL for one table of a generation, the same for SQLite and Postgres, and escaped texts."""

import re
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import Any

from refold.core.tables import Scalar, ViewRow, ViewTable

_LONGEST_NAME = 63
"""Bytes of a name in Postgres, which truncates longer ones silently."""
_REFUSED = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED = re.compile("\x1a([0-9a-f]{4})")


def short(name: str) -> str:
    """Name that fits Postgres: a long one is cut and gets a digest."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 17]}_{blake2b(name.encode(), digest_size=8).hexdigest()}"


def escaped(rows: Collection[Sequence[Scalar]], places: Sequence[int]) -> Collection[Sequence[Scalar]]:
    """Return rows whose texts, in the columns at `places`, have no characters that databases refuse."""
    # One look at all texts together: next to none needs more, and one look at each costs as much as a row's write.
    texts = "".join([row[place] for row in rows for place in places])  # type: ignore[misc]
    if _fits(texts):
        return rows
    return _replaced(rows, _REFUSED, lambda match: f"\x1a{ord(match[0]):04x}")


def unescaped(rows: list[ViewRow], places: Sequence[int]) -> list[ViewRow]:
    if "\x1a" not in "".join([row[place] for row in rows for place in places]):  # type: ignore[misc]
        return rows
    return _replaced(rows, _ESCAPED, lambda match: chr(int(match[1], 16)))


def _replaced(rows: Collection[Sequence[Scalar]], pattern: re.Pattern[str], by: Callable[[Any], str]) -> list[ViewRow]:
    return [tuple(pattern.sub(by, value) if isinstance(value, str) else value for value in row) for row in rows]


def _fits(texts: str) -> bool:
    try:
        texts.encode()  # fails at a lone surrogate, a hundred times faster than a search for one
    except UnicodeEncodeError:
        return False
    return "\x00" not in texts and "\x1a" not in texts


class Statements:
    """SQL for a table; `name` is its name in the database, `mark` the placeholder of parameters."""

    def __init__(self, name: str, table: ViewTable, mark: str) -> None:
        self.name, self.table, self.mark = name, table, mark
        self.texts = [number for number, kind in enumerate(table.columns.values()) if kind is str]
        self.columns, self.keys = _listed(table.names), _listed(table.key_names)
        self.row_marks, self.key_marks = (f"({', '.join([mark] * many)})" for many in (len(table.names), table.keys))
        self.select = f'select {self.columns} from "{name}"'

    def upsert(self, source: str) -> str:
        """Insert rows of `source`, or replace those with their keys; sums are added."""
        added = 'kept."{0}" + ' if self.table.sums else ""
        others = self.table.names[self.table.keys :]
        changed = ", ".join(f'"{name}" = {added.format(name)}excluded."{name}"' for name in others)
        does = f"update set {changed}" if changed else "nothing"
        return f'insert into "{self.name}" as kept ({self.columns}) {source} on conflict ({self.keys}) do {does}'

    def delete(self, *columns: str) -> str:
        return f'delete from "{self.name}" where {" and ".join(f""""{name}" = {self.mark}""" for name in columns)}'


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
