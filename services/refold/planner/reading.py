"""Which parts of a lane take what was read of the topics that are no inputs, and how far any topic was read."""

from __future__ import annotations

from refold.core.approval.catalog import Catalog
from refold.core.topics import BUDGET_SPENT, CATALOG, RUN_LOG, RUN_SNAPSHOT
from refold.planner.parts import LaneParts
from refold.planner.redrives import Redrives
from refold.planner.repairs import Repairs
from refold.ports.log import End, Reached, Record
from refold.runtime.ruling import catalog_reached, follow


class Reading:
    """The readers of one lane, by topic."""

    def __init__(self, parts: LaneParts, catalog: Catalog, again: tuple[Repairs, Redrives]) -> None:
        self._inbox, self._log, self._catalog = parts.inbox, parts.log, catalog
        self._start, self._holds, self._again, self._clock = parts.start, parts.holds, again, parts.clock

    def take(self, item: Record | Reached | End) -> bool:
        """Hands it to whoever reads its topic. False: nothing may follow from it, it is of another log."""
        if item.topic == RUN_LOG:
            return self._take_log(item)
        if item.topic == RUN_SNAPSHOT:
            self._take_snapshot(item)
        elif item.topic == CATALOG:
            self._take_catalog(item)
        elif item.topic == BUDGET_SPENT:
            self._take_spent(item)
        elif isinstance(item, Reached):
            self._inbox.reached(item.topic, item.offset)
        return True

    def _take_log(self, item: Record | Reached | End) -> bool:
        if isinstance(item, End):
            # What was read when it was asked for is not there any more. What came since says nothing of that.
            self._log.shrunk |= item.offset < self._log.asked_at
            self._inbox.unconfirmed.reached_end(item.offset)
            self._log.reached_end(item.offset)
        elif not self._start.admits(item):
            return False
        elif isinstance(item, Reached):
            self._log.seen = item.offset
            self._log.reached(item.offset)
            for reader in self._again:
                reader.reached(item.offset)
        else:
            if item.offset >= self._log.position:
                self._clock.read(item.at_ms)
            self._log.seen = item.offset + 1
            self._log.follow(item)
            for reader in self._again:
                reader.follow(item)
        return True

    def _take_snapshot(self, item: Record | Reached | End) -> None:
        if isinstance(item, Reached):
            self._start.reached(item.topic, item.offset)
        elif isinstance(item, Record):
            self._log.erase(item)
            # Live, a lane knows better: what it reads then it has written itself, and it may be otherwise by now.
            if not self._log.live:
                self._holds.follow(item.key, item.value, at_ms=item.at_ms)
            self._start.follow(item)

    def _take_spent(self, item: Record | Reached | End) -> None:
        if isinstance(item, Record):
            self._log.windows.follow(item)
            self._start.reached(item.topic, item.offset + 1)
        elif isinstance(item, Reached):
            self._start.reached(item.topic, item.offset)

    def _take_catalog(self, item: Record | Reached | End) -> None:
        if isinstance(item, End):
            self._inbox.catalog.reached_end(item.offset)
        elif isinstance(item, Reached):
            catalog_reached(self._catalog, item, self._log.journal)
        else:
            follow(self._catalog, item, self._log.journal)
