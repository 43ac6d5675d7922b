"""Projections: generations, progress, and reasons of stops."""

from typing import Any, Literal

from refold.client.reading.model import ReadModel

ProjectionState = Literal["serving", "building", "stopped"]


class ProjectionPosition(ReadModel):
    """Progress of a generation in a partition. `position` is the next offset, `end` the high watermark."""

    topic: str
    partition: int
    position: int
    end: int


class ProjectionGeneration(ReadModel):
    """A generation of a projection: tables of its own.

    `state` is `serving` for the one that users query, `building` for one that has not caught up, `stopped` for one that
    stands still, for `reason`. **Units**: `lag` in records of the log; `rate` in records a second over the last second,
    `left_s` by that rate, both 0 where nothing is left to read.
    """

    generation: int
    state: ProjectionState
    version: int
    lag: int
    rate: float = 0.0
    left_s: float = 0.0
    reason: str = ""
    positions: list[ProjectionPosition]


class ProjectionRow(ReadModel):
    """A projection in a line; `generation` 0 if none is in use."""

    projection: str
    generation: int
    state: ProjectionState
    version: int
    lag: int
    reason: str


class ProjectionInfo(ReadModel):
    """A projection, with all its generations. `bytes` is the size of the whole database."""

    projection: str
    database: str
    bytes: int
    generations: list[ProjectionGeneration]

    @property
    def row(self) -> ProjectionRow:
        """The generation in use, or the newest."""
        shown = next((one for one in self.generations if one.state == "serving"), self.generations[-1])
        stopped = next((one for one in self.generations if one.state == "stopped"), shown)
        serving = shown.generation if shown.state == "serving" else 0
        return ProjectionRow(
            projection=self.projection,
            generation=serving,
            state=stopped.state,
            version=shown.version,
            lag=shown.lag,
            reason=stopped.reason.partition("\n")[0],
        )


class RowDifference(ReadModel):
    """A row that differs between view and log; None on a side that lacks it."""

    table: str
    key: list[Any]
    run_id: str
    view: dict[str, Any] | None
    log: dict[str, Any] | None


class TableDigest(ReadModel):
    """Digests of a table in the view and in a fold of the log."""

    table: str
    view: str
    log: str
    equal: bool


class ProjectionVerified(ReadModel):
    """Comparison of a view with the log, at the position of the view."""

    projection: str
    generation: int
    equal: bool
    tables: list[TableDigest]
    differences: list[RowDifference]


class ProjectionBuilt(ReadModel):
    """A generation that was built from the start of the log, and is in use."""

    projection: str
    generation: int
    records: int
    seconds: float


class ProjectionDropped(ReadModel):
    projection: str
    generations: list[int]
