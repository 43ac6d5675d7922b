"""A second reading of versions: by which code a run goes on, and who has handed it to another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulator.reading.values import Datum
from tests.simulator.revised import APART, OWN, REVISED

OF_VERSIONS = frozenset({"RunStarted", "RunMigrated", "RunRetried", "CallProposed"})
"""The events that this reads."""


@dataclass(slots=True)
class LoggedVersions:
    """The versions of a run. `version` is that by which it goes on now, `changes` are (before, after, cause of that).

    `at` is the number of the event that gave it its version, `way` the version whose own calls it has made, the first
    of them as step `since`.
    """

    version: str = ""
    changes: list[tuple[str, str, Datum | None]] = field(default_factory=list)
    at: int = 0
    way: str = ""
    since: int = 0

    def follow(self, agent: str, name: str, event: Datum, *, seq: int, cause: Datum | None) -> Iterator[str]:
        """Takes an event of `OF_VERSIONS`; what is wrong with it."""
        if name == "RunStarted":
            self.version, self.at = called(event["version"]), seq
        elif name == "RunMigrated":
            before, self.version, self.at = self.version, called(event["version"]), seq
            self.changes.append((before, self.version, cause))
            if self.version != before and (self.way or self.version == APART):
                yield f"migrated: from version {before} to {self.version}, which does not go with its history"
        elif name == "RunRetried":
            self.way = "" if 0 < event["from_step"] <= self.since else self.way
        elif agent == REVISED and (number := json.loads(event["args"])["n"]) >= OWN:
            if not self.way:
                self.way, self.since = str(number // OWN), event["step"]
            # Begun where nobody had its agent a run is of the first version that there is for it.
            self.version = self.version or self.way
            if str(number // OWN) != self.version:
                yield f"version: call {number} is not of version {self.version}"


def called(version: str) -> str:
    """The name that an author has given a version, without what it stands on."""
    return version.partition("+")[0]
