"""Bugs that no case of the simulator shows, each with the test that fails of it.

Of an entry with an odd time a siege crashes, which is wrong in a campaign, but says nothing of a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any
from weakref import WeakSet

from refold.core.approval.decision import Refusal
from refold.core.events import Entry
from refold.core.ids import parse_log_key
from refold.core.run.chain import LogRecord
from refold.core.run.snapshot import PartitionSnapshot, kept_run
from refold.core.run.state import RunState
from refold.core.wire import codec
from refold.engine.executor.chained import ChainedAttempt
from refold.engine.planner.intake.inbox import SentEntry
from refold.engine.planner.log.acceptance import Acceptance
from refold.engine.planner.snapshot import SnapshotWriter
from refold.engine.ports.log import Record
from tests.sim.bugs.planting import Patch, wrapped


@dataclass(frozen=True, slots=True)
class Unreached:
    """What is put in the place of what, and the test (`module:function`) that shows it, with its `parameters`."""

    patches: tuple[Patch, ...]
    test: str
    parameters: tuple[Any, ...] = ()

    @property
    def run(self) -> Callable[[], None]:
        """The test."""
        module, _, function = self.test.partition(":")
        return partial(getattr(import_module(f"tests.{module}"), function), *self.parameters)


def _by_its_own_chain(original: Callable[[ChainedAttempt], None]) -> Callable[[ChainedAttempt], None]:
    """Passes over a claim of its call under another key that came before its own."""

    def read_back(self: ChainedAttempt) -> None:
        self.known = replace(self.known, others=self.claims.of(self.request).others)
        original(self)

    return read_back


def _by_the_last_vote(original: Callable[..., Refusal | None]) -> Callable[..., Refusal | None]:
    """Takes an old vote for a good one where the last of them is younger than the attempt."""

    def unsettled(decided: Any, *args: Any, **how: Any) -> Refusal | None:
        last = max(decided.votes, key=lambda vote: vote.at_ms)
        return original(replace(decided, votes=(last,)), *args, **how)

    return unsettled


def _at_any_time(original: Callable[..., Any]) -> Callable[..., Any]:
    def read(key: bytes | None, value: bytes | None) -> Any:
        judged = original(key, value)
        if judged != "time":
            return judged
        _, _, name = parse_log_key(key) or (None, None, None)
        return LogRecord(name, codec.decode(Entry, value or b""))  # type: ignore[arg-type]

    return read


def _nothing(*_: object) -> None:
    return None


def _unless_it_is_over(original: Callable[[RunState], Iterator[Any]]) -> Callable[[RunState], Iterator[Any]]:
    """Takes what a fork has started for what its end has left, where its end was read before."""
    return lambda state: iter(()) if state.over else original(state)


_REPAIRED: WeakSet[SnapshotWriter] = WeakSet()


def _noted(original: Callable[..., None]) -> Callable[..., None]:
    def rejoin(self: SnapshotWriter, *args: Any) -> None:
        original(self, *args)
        _REPAIRED.add(self)

    return rejoin


def _unless(stopped: Callable[[SnapshotWriter], bool]) -> Callable[..., Callable[..., None]]:
    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        def round_(self: SnapshotWriter, *args: Any, **more: Any) -> None:
            if not stopped(self):
                original(self, *args, **more)

        return round_

    return wrap


def _by_any_row(snapshot: PartitionSnapshot) -> bool:
    """Takes the row of a failure for that of a run that went on after it."""
    return any(kept_run(key) not in snapshot.finished for key in snapshot._since if key not in snapshot._raw)


def _again(original: Callable[[Acceptance, SentEntry, int | None], Any]) -> Callable[..., Any]:
    """Takes the report on an entry for news though the entry was read."""

    def delivered(self: Acceptance, sent: SentEntry, offset: int | None) -> Any:
        self.unread.setdefault(sent.key, sent)
        return original(self, sent, offset)

    return delivered


def _by_its_key(self: Acceptance, record: Record) -> SentEntry | None:
    return self.unread.get(record.key or b"")


def _all_of_it(original: Callable[[Acceptance, SentEntry], None]) -> Callable[[Acceptance, SentEntry], None]:
    """Drops the latest state of a run whatever that stands on."""

    def undo(self: Acceptance, sent: SentEntry) -> None:
        self.drop(sent.entry.run_id)
        original(self, sent)

    return undo


_READ_FIRST = "planner.test_overlap:test_an_entry_that_is_read_before_its_report_counts_then_and_once"

UNREACHED: dict[str, Unreached] = {
    "own-entry-read-as-foreign": Unreached((("Acceptance._recognise", _nothing),), _READ_FIRST, (True,)),
    "report-counted-again": Unreached((wrapped("Acceptance.delivered", _again),), _READ_FIRST, (True,)),
    "unknown-after-it-was-read": Unreached((wrapped("Acceptance.delivered", _again),), _READ_FIRST, (False,)),
    "own-entry-known-by-its-key": Unreached(
        (("Acceptance._recognise", _by_its_key),),
        "planner.test_overlap:test_a_key_alone_makes_no_record_an_own_one",
    ),
    "late-loss-takes-all-back": Unreached(
        (wrapped("Acceptance._undo", _all_of_it),),
        "planner.test_overlap:test_an_entry_that_comes_too_late_takes_back_nothing_that_stands_on_what_came_first",
    ),
    "flies-without-bounds": Unreached(
        (("Acceptance.has_room", property(lambda log: not log.blocked)),),
        "planner.test_overlap:test_entries_on_their_way_are_bounded_in_number_and_in_bytes",
        (20_000, 3),
    ),
    "run-view-note-of-a-zombie": Unreached(
        (("publishing.fenced", lambda positions: {}),),
        "projections.test_publishing:test_a_zombie_cannot_clear_what_its_successor_has_left_to_publish",
    ),
    "two-keys-two-owners": Unreached(
        (wrapped("ChainedAttempt._read_back", _by_its_own_chain),),
        "recovery.test_once_again:test_of_two_claims_of_a_call_under_two_keys_the_later_lets_go",
    ),
    "one-young-vote-settles": Unreached(
        (wrapped("decision.unsettled", _by_the_last_vote),),
        "recovery.test_settled:test_one_old_vote_of_two_settles_nothing",
    ),
    "waits-across-a-ruling": Unreached(
        (("Executor._take_back", _nothing),),
        "recovery.test_taken_back:test_an_order_that_waits_for_a_slot_does_not_begin",
    ),
    "claimed-across-a-ruling": Unreached(
        (("Attempt.take_back", _nothing),),
        "recovery.test_taken_back:test_a_claim_under_which_nothing_was_done_is_taken_back_too",
    ),
    "fork-leaves-no-children": Unreached(
        (wrapped("planning.family._begin_again", _unless_it_is_over),),
        "planner.test_family:test_a_child_that_outlives_a_fork_begins_though_the_fork_is_read_as_over",
    ),
    "forked-run-stops-snapshots": Unreached(
        (wrapped("SnapshotWriter.round", _unless(lambda writer: bool(writer.apart))),),
        "planner.test_apart:test_a_forked_run_keeps_only_itself_out_of_the_snapshot",
        (40,),
    ),
    "repaired-run-stops-snapshots": Unreached(
        (
            wrapped("SnapshotWriter.rejoin", _noted),
            wrapped("SnapshotWriter.round", _unless(lambda writer: writer in _REPAIRED)),
        ),
        "planner.test_apart:test_a_repaired_run_is_kept_anew",
    ),
    "zombies-block-kept": Unreached(
        (("SnapshotWriter.follow", _nothing),),
        "planner.test_snapshots:test_a_block_that_a_zombie_writes_of_a_run_is_deleted_when_the_run_is_over",
        (1,),
    ),
    "retry-lost-to-a-zombie": Unreached(
        (("PartitionSnapshot._lost", _by_any_row),),
        "planner.test_snapshots:test_a_run_that_goes_on_is_not_lost_to_a_zombie_that_deletes_its_failed_state",
    ),
    "entry-of-no-time": Unreached(
        (wrapped("chain.read", _at_any_time),),
        "core.test_chain:test_an_entry_with_a_time_that_no_log_has_is_void",
        (0,),
    ),
}
"""By name."""
