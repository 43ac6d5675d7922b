"""What can go wrong at a boundary, by name, which of it makes sense where, and the chance of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from refold.core.errors import UsageError
from refold.core.topics import (
    APPROVAL_DECIDED,
    APPROVAL_REQUESTED,
    APPROVAL_VOTED,
    BUDGET_SPENT,
    DEAD_LETTER,
    RUN_COMPLETED,
    RUN_LOG,
    RUN_OPERATED,
    RUN_REQUESTED,
    RUN_SIGNALLED,
    RUN_SNAPSHOT,
)
from tests.simulator.settings import ANSWERS, CLAIMS, ORDERS

PROCESS = ("die", "die-after", "away", "freeze", "freeze-after", "freeze-read", "pause", "pause-after", "drain")
"""The process at the boundary dies, or freezes while a successor works (a zombie), or pauses for less than that.

`-after`: the effect is done, its answer is lost or comes late. `-read`: it freezes with what it reads next in its
hands. `away`: it dies, and for a while there is nobody in its place. `drain`: it is told to end, as every deploy does.
"""

WRITE = ("lost", "unsure", "overdue", "delayed", "refuse")
"""The outcome of a write is unknown: it is not there, it is there (which is told at once, or late), it comes later. Or
the log will never take it."""

LATE = ("belated",)
"""A record that nobody waits for is there, and may be read long before that is told."""

LEDGER = ("cut", "cut-after")
"""The ledger, or the archive, cannot be reached: the operation was not carried out, or it was."""

FORGETS = {
    "forget-requests": RUN_REQUESTED,
    "forget-signals": RUN_SIGNALLED,
    "forget-operations": RUN_OPERATED,
    "forget-results": ANSWERS,
    "forget-log": RUN_LOG,
    "forget-orders": ORDERS,
}
"""What a group forgets while it lives, and lacks when everything dies a little later."""

TRUNCATES = {
    "truncate-log": RUN_LOG,
    "truncate-snapshot": RUN_SNAPSHOT,
    "truncate-orders": ORDERS,
    "truncate-results": ANSWERS,
    "truncate-requests": RUN_REQUESTED,
    "truncate-signals": RUN_SIGNALLED,
    "truncate-operations": RUN_OPERATED,
    "truncate-claims": CLAIMS,
    "truncate-spent": BUDGET_SPENT,
    "truncate-questions": APPROVAL_REQUESTED,
    "truncate-votes": APPROVAL_VOTED,
    "truncate-decisions": APPROVAL_DECIDED,
    "truncate-outcomes": RUN_COMPLETED,
    "truncate-letters": DEAD_LETTER,
}
"""What loses its last records, though they were acknowledged: an election was unclean."""

_UNDRAWN = (
    *("ledger-ahead", "mirror-plain", "deploy-rolling", "store-other", "snapshot-newer", "snapshot-holed"),
    *("unlearn", *LATE),
)
"""What chance never draws as such, so that its seeds stay what they were."""

_DRAWN_AS = ("truncate-log", "truncate-snapshot", "truncate-orders", "truncate-results")
"""By which of them chance draws any: so that a seed whose schedule loses no records stays what it was."""

SNAPSHOT = ("truncate-snapshot", "snapshot-newer", "snapshot-holed")
"""What may be wrong with a snapshot, of which chance draws any by the first: it lacks its end, a newer version has
written there what nobody can read, or one record is gone that the marks rely on. Everybody dies of the last two."""

AROUND = (
    *("power", "wipe", "wipe-die", "wipe-seen", "rollback", "rollback-die", "compact", "forget", *FORGETS),
    *TRUNCATES,
    *(
        "visit",
        "move",
        "expire",
        "amnesia",
        "outage",
        "mirror",
        "clean",
        "deploy-none",
        "deploy-other",
        "deploy-hungry",
        "hang",
        "ledger-ahead",
        "mirror-plain",
        "deploy-rolling",
        "store-other",
        "unlearn",
        *SNAPSHOT[1:],
    ),
)
"""Everything dies; the ledger forgets all or its last writes (alone, with a process, or visibly); the log compacts; the
group offsets are gone, all or those of a topic; a partition loses its end; somebody joins the group and has a
partition, for a while or for good.

The ledger forgets what is done; offsets and ledger go together, at once or in an outage that is longer than requests
are good for, after which executors are there first; records are there twice, and cleaned; even unsettled inputs are
compacted; planners have other code for a while: some of them that of before, or all code without agents, with agents
that disagree, on a host without memory; the code of a run hangs; the ledger's own clock goes a day ahead and is set
right; a copy of all topics has other offsets, and nothing twice; for a while all have another blob store. `unlearn`:
executors forget what orders have brought of earlier calls."""

LOSES_LEDGER = ("wipe", "rollback", "amnesia")
"""What of a ledger may be gone after these is whatever it knew."""

SMALL = ("die", "die-after", "freeze", "freeze-after", "wipe")
"""What pairs are made of."""

MODES = (*PROCESS, *WRITE, *LATE, *LEDGER, *AROUND)


class Fault(NamedTuple):
    """A fault at the boundary with this number, counted from 1."""

    at: int
    mode: str

    def __str__(self) -> str:
        return f"{self.at}:{self.mode}"


def parse_fault(text: str) -> Fault:
    """A fault as `str` writes it. **Raises** UsageError."""
    at, _, mode = text.partition(":")
    if not at.isdigit() or mode not in MODES:
        raise UsageError(f"{text!r} is not a fault", hint=f"write NUMBER:MODE; modes are {', '.join(MODES)}")
    return Fault(int(at), mode)


def modes_at(kind: str) -> tuple[str, ...]:
    """The faults that make sense at a boundary of this kind."""
    if kind in ("append", "publish"):
        return (*PROCESS, *WRITE, *(LATE if kind == "publish" else ()), *AROUND)
    if kind in ("ledger", "shelf"):
        return (*PROCESS, *LEDGER, *AROUND)
    return (*PROCESS, *AROUND)


@dataclass(slots=True)
class Chance:
    """How chance has a say. Without it (`rng` for ids alone) a case is the same up to its first fault.

    `rate` is the chance of a fault at a boundary, of at most `left` faults before `until_ms`. `spared` are the numbers
    of faults, counted from 1, that chance wanted and does not get, `never` what it does not get any more, as no rule
    can help against it after a fault that has struck.
    """

    rng: Random
    wild: bool = False
    rate: float = 0.0
    left: int = 0
    until_ms: int = 0
    spared: frozenset[int] = frozenset()
    wanted: int = 0
    never: set[str] = field(default_factory=set)

    def strike(self, kind: str) -> str:
        """The fault at a boundary of this kind; mostly none. What is spared is drawn all the same."""
        if not self.left or (drawn := self.rng.random()) >= self.rate:
            return ""
        drawable = [each for each in modes_at(kind) if each not in _UNDRAWN]
        mode = self.rng.choice([each for each in drawable if each not in TRUNCATES or each in _DRAWN_AS])
        if mode in _DRAWN_AS:
            place = drawn / self.rate * len(TRUNCATES)
            mode = list(TRUNCATES)[int(place)]
            if mode == SNAPSHOT[0]:
                mode = SNAPSHOT[int(place % 1 * len(SNAPSHOT))]
        self.left -= 1
        self.wanted += 1
        return "" if self.wanted in self.spared or mode in self.never else mode

    def fetch(self, position: int, end: int) -> int:
        """How far a poll reads: all there is, or in a wild world sometimes less."""
        if not self.wild or self.rng.random() < 0.7:
            return end
        return self.rng.randint(position, end)
