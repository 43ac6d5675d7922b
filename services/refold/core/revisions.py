"""What happens to a run whose agent's code is changed while it lives."""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PatchTaken:
    """The run has come to a change in its agent's code as a new one: it takes the new way, for ever.

    It is no step: a history from before the change has none, and its steps keep their numbers.
    """

    patch: str


@dataclass(frozen=True, slots=True)
class RunMigrated:
    """Somebody has handed the run to another version of its agent, which agrees with its history so far."""

    version: str
    actor: str
    manifest: dict[str, str] = field(default_factory=dict)
