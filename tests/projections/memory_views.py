"""A database of views in memory, for tests and the simulator."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from refold.adapters.memory.tables import MemoryViewStore
from refold.core.errors import ConflictError, NotFoundError, UsageError
from refold.core.tables import ViewTable


class MemoryViewDatabase:
    """See `ViewDatabase`. `public` names the generation behind each name that users query."""

    def __init__(self) -> None:
        self._stores: dict[str, dict[int, MemoryViewStore]] = {}
        self._serving: dict[str, int] = {}
        self.public: dict[str, MemoryViewStore] = {}

    def generations(self, projection: str) -> dict[int, str]:
        serving = self._serving.get(projection)
        return {
            number: "serving" if number == serving else "building"
            for number in sorted(self._stores.get(projection, {}))
        }

    def projections(self) -> list[str]:
        return sorted(name for name, stores in self._stores.items() if stores)

    def create(self, projection: str, generation: int, tables: Collection[ViewTable], notes: Mapping[str, str]) -> None:
        if generation in self._stores.setdefault(projection, {}):
            raise ConflictError(f"there is a generation {generation} of {projection} already")
        self._stores[projection][generation] = MemoryViewStore(notes)

    def store(self, projection: str, generation: int) -> MemoryViewStore:
        if (found := self._stores.get(projection, {}).get(generation)) is None:
            raise NotFoundError(f"there is no generation {generation} of {projection}")
        return found

    def switch(self, projection: str, generation: int, tables: Collection[ViewTable]) -> None:
        store, own = self.store(projection, generation), self._stores[projection].values()
        others = {name: each for name, each in self.public.items() if each not in own}
        if taken := sorted(table.name for table in tables if table.name in others):
            raise UsageError(f"another projection has a table {', '.join(taken)} too", hint="rename one of them")
        self._serving[projection] = generation
        self.public = others | {table.name: store for table in tables}

    def drop(self, projection: str, generation: int) -> None:
        store = self.store(projection, generation)
        del self._stores[projection][generation]
        if self._serving.get(projection) == generation:
            del self._serving[projection]
        self.public = {name: each for name, each in self.public.items() if each is not store}

    def lock(self, projection: str) -> bool:
        return True

    def wait(self, timeout_s: float) -> bool:
        return False

    def bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass
