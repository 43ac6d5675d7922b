"""How a lane reads the catalog: what is void there is told."""

from __future__ import annotations

from refold.core.approval.catalog import Catalog
from refold.ports.log import Record
from refold.runtime.lanes import Journal


def follow(catalog: Catalog, record: Record, journal: Journal) -> None:
    """Takes the next record of the catalog. One that is void is an alarm: the authority writes none, so others do."""
    if record.offset > catalog.position:
        journal.tell("catalog.lost", partition=record.partition, first=record.offset, expected=catalog.position)
    if why := catalog.follow(record.offset, record.key, record.value):
        place = {"partition": record.partition, "offset": record.offset}
        journal.tell("catalog.void", **place, name=(record.key or b"").decode(errors="replace")[:200], reason=why)
