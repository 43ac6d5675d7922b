"""Tools of an app by name. A source's configuration alone makes a tool: planners and executors find the same one."""

import dataclasses
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from refold.core.approval.decision import ToolFacts
from refold.sdk.tool import ToolDef


class ToolSource(Protocol):
    """Source of tools by name: `declared` ones, and others whose names begin with `prefix`."""

    @property
    def prefix(self) -> str: ...

    def declared(self) -> Sequence[ToolDef]: ...

    def tool(self, name: str) -> ToolDef | None:
        """Return the tool of a name with the prefix; None for an invalid name."""
        ...


class ToolTable(UserDict[str, ToolDef]):
    """Tools by name. Iterates over declared tools; a look-up also finds tools of its `sources`."""

    def __init__(self, declared: Mapping[str, ToolDef] | None = None, sources: Sequence[ToolSource] = ()) -> None:
        super().__init__(declared or {})
        self.sources = list(sources)

    def __missing__(self, name: str) -> ToolDef:
        if (tool := self._of_source(name)) is None:
            raise KeyError(name)
        return tool

    def __contains__(self, name: object) -> bool:
        """True for a declared tool, and for any name from which a source makes a tool."""
        return name in self.data or (isinstance(name, str) and self._of_source(name) is not None)

    def _of_source(self, name: str) -> ToolDef | None:
        source = next((other for other in self.sources if name.startswith(other.prefix)), None)
        return source.tool(name) if source else None


class FactsTable(Mapping[str, ToolFacts]):
    """Facts of an app's tools by name, for policies; `pool`, if set, replaces the pool of each."""

    def __init__(self, tools: Mapping[str, ToolDef], pool: str = "") -> None:
        self._tools, self._pool = tools, pool

    def __getitem__(self, name: str) -> ToolFacts:
        facts = self._tools[name].facts
        return dataclasses.replace(facts, pool=self._pool) if self._pool else facts

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)
