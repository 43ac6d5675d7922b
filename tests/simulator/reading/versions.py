"""A second reading of versions: by which code a run goes on, and who has handed it to another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulator.reading.values import Datum
from tests.simulator.revised import APART, OWN, REVISED

OF_VERSIONS = frozenset({"RunStarted", "RunMigrated", "RunRetried", "RunFailed", "CallProposed"})
"""The events that this reads."""


@dataclass(slots=True)
class LoggedVersions:
    """The versions of a run. `version` is that by which it goes on now, `changes` are (before, after, cause of that).

    `at` is the number of the event that gave it its version. `steps` are the calls that count: each with the entry that
    asked for it, and the version whose own it is, if it is of one alone; `ended` is the entry that ended it last.
    """

    version: str = ""
    changes: list[tuple[str, str, Datum | None]] = field(default_factory=list)
    at: int = 0
    steps: dict[int, tuple[int, str]] = field(default_factory=dict)
    ended: int = 0

    @property
    def way(self) -> str:
        """The version whose own calls it has made."""
        return next((way for _, way in self.steps.values() if way), "")

    def follow(
        self, agent: str, name: str, event: Datum, *, seq: int, entry: int, cause: Datum | None
    ) -> Iterator[str]:
        """Takes an event of `OF_VERSIONS`, in an entry of this number; what is wrong with it."""
        if name == "RunStarted":
            self.version, self.at = called(event["version"]), seq
        elif name == "RunMigrated":
            before, self.version, self.at = self.version, called(event["version"]), seq
            if before or event["actor"]:
                self.changes.append((before, self.version, cause))
            if self.version != before and (self.way or (self.version == APART and self.steps)):
                yield f"migrated: from version {before} to {self.version}, which does not go with its history"
        elif name == "RunRetried":
            self._leave(event["from_step"])
        elif name == "RunFailed":
            self.ended = entry
        elif agent == REVISED:
            number = json.loads(event["args"])["n"]
            own = str(number // OWN) if number >= OWN else ""
            self.steps[event["step"]] = entry, own
            if own not in ("", self.version):
                yield f"version: call {number} is not of version {self.version}"

    def _leave(self, first: int) -> None:
        """A retry leaves the steps from the first on, or without one those that were asked for in the last entry."""
        left = {step for step, (at, _) in self.steps.items() if (step >= first if first else at == self.ended)}
        self.steps = {step: of for step, of in self.steps.items() if step not in left}


def called(version: str) -> str:
    """The name that an author has given a version, without what it stands on."""
    return version.partition("+")[0]
