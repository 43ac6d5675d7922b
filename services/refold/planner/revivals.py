"""Failed runs that go on: from a row to a history again, when the log has the entry that lets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from refold.core.events import Entry
from refold.core.ids import RunId
from refold.core.run import chain
from refold.core.run.chain import Head, LogRecord
from refold.core.run.finished import Finished
from refold.core.run.log import LogFold
from refold.core.run.redrive import reopens
from refold.core.run.state import RunState
from refold.planner.snapshots import Keeper
from refold.ports.log import Record


@dataclass(frozen=True, slots=True)
class Revived:
    """A run that is over, with its history: `entries` are offset, seq and bytes of each.

    Of one that goes on by somebody else's word, `news` are the entries that nobody here has heard of.
    """

    state: RunState
    entries: list[tuple[int, int, bytes]]
    news: list[Entry]


class Revivals:
    """Of one lane. `revived` were read again, `unknown` go on, and nothing of their history is here but a row.

    Of those it has the head that the row names: nobody here has heard of what counts after that.
    """

    def __init__(
        self, fold: LogFold, finished: Finished, keeper: Keeper, *, freeze: Callable[[RunId, str], None]
    ) -> None:
        self._fold, self._finished, self._keeper, self._freeze = fold, finished, keeper, freeze
        self.revived: dict[RunId, Revived] = {}
        self.unknown: dict[RunId, Head] = {}

    def state(self, run: RunId) -> RunState | None:
        """A run that is over as far as anybody knows: all of it if it was read again."""
        revived = self.revived.get(run)
        return revived.state if revived else self._finished.state(run)

    def finds(self, record: Record, run: RunId, seq: int) -> bool:
        """Whether a record that nobody here has written lets a run go on of which nothing is here but a row."""
        row = self._finished.get(run)
        if row is None or row.status != "failed" or seq != row.head.seq + 1:
            return False
        read = chain.read(record.key, record.value)
        if not isinstance(read, LogRecord) or not reopens(row.head, row.status, read.entry):
            return False
        if self.reopen(read.entry):
            return False
        # Until its history is read it stands still, and nothing is kept that would rely on it.
        self.forget(run)
        self.unknown[run] = row.head
        self._keeper.pin(run)
        self._freeze(run, "retried: its history is being read again")
        return True

    def reopen(self, entry: Entry) -> bool:
        """Makes a failed run one that lives, if this entry lets it go on and its history is here; whether it did."""
        revived = self.revived.get(entry.run_id)
        if revived is None or not reopens(revived.state.head, revived.state.status, entry):
            return False
        del self.revived[entry.run_id]
        self.take_back(revived)
        return True

    def take_back(self, revived: Revived) -> None:
        """The history of a run is here again."""
        run = revived.state.run_id
        self.forget(run)
        self._fold.states[run] = revived.state
        self._keeper.reopen(run, revived.entries)

    def forget(self, run: RunId) -> None:
        """Makes a run unknown."""
        self._finished.forget(run)
        self.drop(run)

    def drop(self, run: RunId) -> None:
        """Drops all that is known of a run but its row."""
        self._fold.forget(run)
        self.revived.pop(run, None)
        self.unknown.pop(run, None)
