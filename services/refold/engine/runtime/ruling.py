"""Reading of the catalog by a lane, with alarms for void and lost records."""

from refold.core.approval.catalog import Catalog
from refold.engine.ports.log import Reached, Record
from refold.engine.runtime.lanes import Journal


def follow(catalog: Catalog, record: Record, journal: Journal) -> None:
    """Read the next catalog record; a void one is an alarm, as the authority writes none."""
    catalog_reached(catalog, record, journal)
    if why := catalog.follow(record.offset, record.key, record.value):
        place = {"partition": record.partition, "offset": record.offset}
        journal.tell("catalog.void", **place, name=(record.key or b"").decode(errors="replace")[:200], reason=why)


def catalog_reached(catalog: Catalog, at: Record | Reached, journal: Journal) -> None:
    """Set the reading position; a gap before it is an alarm, even if the partition is empty since."""
    if at.offset > catalog.position:
        journal.tell("catalog.lost", partition=at.partition, first=at.offset, expected=catalog.position)
    catalog.reached(at.offset)
