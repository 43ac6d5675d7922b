"""Declarations of a view's tables. A row belongs to one run, or it is a sum."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Scalar = str | int | bytes
"""Value of a column. There are no nulls: an unknown text or number is empty, or 0."""

ViewKey = tuple[Scalar, ...]
ViewRow = tuple[Scalar, ...]
"""Values in the order of the table's columns, those of the key first."""


@dataclass(frozen=True)
class ViewTable:
    """Table of a view, equal to another one of its name; `columns` begin with the key's. `sums`: every column behind
    the key is added up; else a row belongs to a run, by its column `run_id`. `indexes` are further columns for lookups.
    `forgets`: the key of sums names runs, so erased runs leave nothing in them. `fading` are columns with topic,
    partition and offset of a record that is deleted by age: a row may outlive it."""

    name: str
    columns: Mapping[str, type[Scalar]] = field(compare=False)
    keys: int = field(compare=False)
    sums: bool = field(default=False, compare=False)
    indexes: tuple[tuple[str, ...], ...] = field(default=(), compare=False)
    forgets: bool = field(default=False, compare=False)
    fading: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        return self.names[: self.keys]

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The number of each column, from 0."""
        return {name: number for number, name in enumerate(self.columns)}

    def named(self, row: Iterable[Scalar]) -> dict[str, Any]:
        return dict(zip(self.columns, row, strict=True))

    @cached_property
    def keyed_by_run(self) -> bool:
        return "run_id" in self.key_names

    @cached_property
    def run_place(self) -> int:
        """The number of the column `run_id`. **Raises** KeyError if rows belong to no run."""
        return self.places["run_id"]
