"""What was spent under limits per day or month, as lanes have told: the newest word of each, added up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from refold.core.errors import FoldError, MalformedError
from refold.core.events import Spendable
from refold.core.planning.windows import WindowKey, key_of
from refold.core.run.purse import NOTHING, Amount
from refold.core.spending import WindowSpent
from refold.core.wire import codec
from refold.ports.log import Record


@dataclass(frozen=True, slots=True)
class LimitInUse:
    """A limit, and what was spent. Of a label `value` is the digest of its value, or `rest`, for all that are many.

    **Units**: billionths of a dollar.
    """

    window: str
    agent: str
    label: str
    value: str
    spent: Amount
    limits: Spendable


def limits_in_use(records: Iterable[Record]) -> list[LimitInUse]:
    """The limits that something was spent of, by the records of `budget-spent`, the newest windows first.

    What a planner has let out within the last second may not be told so far.
    """
    told: dict[bytes, WindowSpent] = {}
    for record in records:
        if record.value is None:
            told.pop(record.key or b"", None)
        elif (said := _read(record)) is not None and said.lane == record.partition:
            told[record.key or b""] = said  # the copies in other partitions are for the lanes of those
    lanes: dict[WindowKey, dict[int, WindowSpent]] = {}
    for said in sorted(told.values(), key=lambda said: said.log):
        lanes.setdefault(key_of(said), {})[said.lane] = said  # of two who had the lane, who came further in its log
    return [_added(key, list(lanes[key].values())) for key in _ordered(lanes)]


def _ordered(keys: Iterable[WindowKey]) -> list[WindowKey]:
    return sorted(sorted(keys), key=lambda key: key.window, reverse=True)


def _added(key: WindowKey, told: list[WindowSpent]) -> LimitInUse:
    spent = NOTHING
    for said in told:
        spent = spent.plus(Amount(said.tokens, said.nano_usd, said.calls))
    return LimitInUse(*key, spent, told[-1].limits)


def _read(record: Record) -> WindowSpent | None:
    try:
        return codec.decode(WindowSpent, record.value) if record.value else None
    except (FoldError, MalformedError):
        return None
