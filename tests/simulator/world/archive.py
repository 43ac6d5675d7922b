"""The simulated archive: files in memory, and what operators want erased."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from obstore.exceptions import AlreadyExistsError

from refold.core.errors import NotFoundError, UnreachableError
from refold.engine.archive.store import ArchiveStore
from refold.engine.runtime.objects import ObjectStore

EACH_PASS = b"archivist", b"erased"
"""The keys of what an archivist writes in each pass: by one it reads the clock of the broker, one is the horizon."""

Put = Callable[[Callable[[], None], str], object]
"""A boundary: does a write to the archive, unless that fails."""


@dataclass(slots=True)
class Demand:
    """A run that an operator wants erased. Where it is refused the operator repeats it so often (`unknown_runs`)."""

    run: str
    unknown_runs: int = 3


@dataclass(slots=True)
class Archive:
    """What archivists share: `files` by path, and `demands` that none has met so far.

    `written` counts the records of everybody, but for those of each pass. `held` has what each pass under way has
    written or read there, by archivist: nothing can be expected of what decays after it was verified.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    demands: list[Demand] = field(default_factory=list)
    written: int = 0
    held: dict[str, set[str]] = field(default_factory=dict)

    def rot(self, spared: set[str]) -> int:
        """Damages the data files that are neither `spared` nor held; returns how many."""
        spared = spared.union(*self.held.values())
        damaged = [path for path in self.files if path.endswith(".avro") and path not in spared]
        for path in damaged:
            content = self.files[path]
            self.files[path] = content[: len(content) // 2]
        return len(damaged)


class MemoryObjects(ObjectStore):
    """An object store over files in memory. `step` is called with each write; what is touched is `held` then."""

    def __init__(self, files: dict[str, bytes], step: Put, held: set[str]) -> None:
        self.url, self.files, self._step, self.held = "memory:", files, step, held

    def put(self, path: str, content: bytes, *, over: bool = False) -> None:
        self.held.add(path)
        # Whether it is there counts when it is written: whoever was frozen meanwhile finds another's file.
        if self._step(lambda: self.files.update({path: self.files.get(path, content)}), path) is not None:
            raise UnreachableError(f"the archive does not answer about {path}")
        if self.files[path] is not content:
            raise AlreadyExistsError(path)


class MemoryShelf(ArchiveStore):
    """The product's shelf over files in memory."""

    def __init__(self, objects: MemoryObjects) -> None:
        self.url, self._objects, self._memory = objects.url, objects, objects

    def _paths(self, prefix: str) -> list[str]:
        return sorted(path for path in self._memory.files if not prefix or path.startswith(f"{prefix}/"))

    def _get(self, path: str) -> bytes:
        if path not in self._memory.files:
            raise NotFoundError(f"{self.url} has no file {path}")
        self._memory.held.add(path)
        return self._memory.files[path]
