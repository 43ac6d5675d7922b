"""A lane's reading of the catalog: what is void there is told."""

from __future__ import annotations

from refold.core.approval.catalog import Catalog
from refold.ports.log import Reached, Record
from refold.runtime.lanes import Journal


def follow(catalog: Catalog, record: Record, journal: Journal) -> None:
    """Takes the next record of the catalog. One that is void is an alarm: the authority writes none, so others do."""
    catalog_reached(catalog, record, journal)
    if why := catalog.follow(record.offset, record.key, record.value):
        place = {"partition": record.partition, "offset": record.offset}
        journal.tell("catalog.void", **place, name=(record.key or b"").decode(errors="replace")[:200], reason=why)


def catalog_reached(catalog: Catalog, at: Record | Reached, journal: Journal) -> None:
    """Reading has come to a place. A loss of what lay before is an alarm, in a partition that is empty by now, too."""
    if at.offset > catalog.position:
        journal.tell("catalog.lost", partition=at.partition, first=at.offset, expected=catalog.position)
    catalog.reached(at.offset)
