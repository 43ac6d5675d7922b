"""Bugs with large values: the log points to what is not there, or nobody fetches what it points to."""

from __future__ import annotations

from typing import Any

from refold.engine.planner.deciding.decide_loop import LargeValues
from refold.engine.planner.intake.inbox import Pending, SentEntry
from tests.sim.bugs.planting import Bug


def _record_first(values: LargeValues, sent: SentEntry) -> None:
    away, values._away = values._away, []
    values._send(sent)
    for value in away:
        values._orders.save(value, lambda _: None)


def _nobody_asks(values: LargeValues, *_: Any) -> None:
    return None


def _own_runs_alone(values: LargeValues, item: Pending, *, loads: bool) -> bool:
    return False


UNTIDY: dict[str, Bug] = {
    "record-before-value": Bug(("large",), (("LargeValues.send", _record_first),)),
    "values-of-the-past-unread": Bug(("large",), (("LargeValues.drive", _nobody_asks),), ("die",)),
    "overtakes-what-is-kept": Bug(("large",), (("LargeValues.awaits", _own_runs_alone),)),
}
