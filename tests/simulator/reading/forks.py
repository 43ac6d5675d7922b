"""A second reading of forks: what a run begins with is the history of another one, to the letter, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulator.reading.values import Datum

if TYPE_CHECKING:
    from tests.simulator.reading.logged import LoggedCall, LoggedRun


@dataclass(slots=True)
class LoggedFork:
    """Where a run was forked from: `head` is the last entry of run `source` that it keeps, `seq` its last event.

    `names` are the entries that it has to keep, once they were looked for; None: there are none such. `at` is the seq
    of the event that ends them, 0 before it. `kept` are the calls in them by step, `opened` those that are to be asked
    for anew, and `children` the runs that are to be begun anew.
    """

    source: str
    seq: int
    head: bytes
    lineage: list[str]
    names: list[bytes] | None = field(default=None, compare=False)
    at: int = 0
    kept: dict[int, LoggedCall] = field(default_factory=dict)
    opened: dict[int, LoggedCall] = field(default_factory=dict)
    children: set[str] = field(default_factory=set)

    def ends(self, entry: Datum) -> bool:
        """True if an entry ends what is kept."""
        kind, event = entry["events"][0]
        return bool(kind.endswith(".RunForked") and self.is_it(event))

    def is_it(self, event: Datum) -> bool:
        """True if an event says that this was forked, and not a run whose entries it keeps."""
        return bool((event["source"]["run_id"], event["source"]["head"]) == (self.source, self.head))


def forked_from(event: Datum) -> LoggedFork | None:
    """What the request of a run says."""
    said = event["forked"]
    return LoggedFork(said["run_id"], said["seq"], said["head"], said["lineage"]) if said else None


def is_copy(run: LoggedRun, entry: Datum) -> bool:
    """True if the next entry of a run is one of those that it keeps of another run."""
    kind, event = entry["events"][0]
    fork = run.fork or (forked_from(event) if kind.endswith(".RunRequested") else None)
    return fork is not None and not fork.at and not fork.ends(entry) and entry["seq"] <= fork.seq


def unlike(known: Mapping[bytes, Datum], run: LoggedRun, entry: Datum) -> Iterator[str]:
    """In what an entry that was kept differs from that of its source, of all `known` ones that have ever counted."""
    fork, place = run.fork, len(run.heads) - 1
    assert fork is not None, "a copy is of a fork"
    if fork.names is None:
        fork.names = _path(known, fork.head)
        if not fork.names or known[fork.head]["run_id"] != fork.source or last_of(known[fork.head]) != fork.seq:
            yield f"copied: run {run.id} is forked from an entry of {fork.source} that never counted"
            fork.names = []
    if place >= len(fork.names):
        return
    source = known[fork.names[place]]
    digest = entry["events"][0][1].get("request_digest", "")  # which tells a fork that is asked for again
    wanted = [_as_copied(fork, kind, event, digest) for kind, event in source["events"]]
    if (entry["events"], entry["at_ms"], entry["held"]) != (wanted, source["at_ms"], source["held"]):
        yield f"copied: entry {entry['seq']} of run {run.id} is not that of {fork.source}"
    lineage = source["events"][0][1]["forked"]["lineage"] if place == 0 and source["events"][0][1]["forked"] else []
    if place == 0 and fork.lineage != [*lineage, fork.source]:
        yield f"copied: run {run.id} has the lineage {fork.lineage}"


def _as_copied(fork: LoggedFork, kind: str, event: Datum, digest: str) -> tuple[str, Datum]:
    if not kind.endswith(".RunRequested"):
        return kind, event
    budget = {**event["budget"], "root": ""} if event["budget"] else None
    forked = {"run_id": fork.source, "seq": fork.seq, "head": fork.head, "lineage": fork.lineage}
    bare = {"request_digest": digest, "token": "", "outlives": False, "above": []}
    return kind, {**event, **bare, "budget": budget, "forked": forked}


def _path(known: Mapping[bytes, Datum], head: bytes) -> list[bytes]:
    """The entries from the first one of a run to this one; nothing if one of them is not known."""
    found: list[bytes] = []
    while head:
        if head not in known:
            return []
        found.append(head)
        head = known[head]["prev"]
    return found[::-1]


def last_of(entry: Datum) -> int:
    """The seq of the last event of an entry."""
    return int(entry["seq"]) + len(entry["events"]) - 1


def left_open(run: LoggedRun, entry: Datum) -> Iterator[str]:
    """After an entry: what a fork has not asked for anew, and what it did without an end of what it keeps."""
    fork = run.fork
    if fork is None:
        return
    if not fork.at:
        yield f"copied: run {run.id} goes on at {run.seq}, and nobody has said that it was forked"
        fork.at = run.seq
    if fork.at <= fork.seq and not run.over:
        yield f"copied: run {run.id} goes on with its entries up to {fork.at}, and was forked at {fork.seq}"
    for step, call in fork.opened.items() if not run.over else ():
        if not call.left:
            yield f"copied: step {step} of run {run.id} is open where it was forked, and is not asked for anew"
    fork.opened.clear()
    if run.over and fork.at >= entry["seq"]:  # it is over as soon as it is a run, and begins none of them
        run.children.known = {name: child for name, child in run.children.known.items() if name not in fork.children}
