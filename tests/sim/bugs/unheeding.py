"""Bugs of runs that others submit: nobody asks for them again, or in another name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refold.core import events
from refold.core.planning import commands
from refold.engine.planner.log import outbox
from tests.sim.bugs.planting import Bug


def _in_no_name(*given: Any) -> Any:
    (command,), closed = commands._submit_run(*given)
    return [replace(command, message=replace(command.message, requester=""))], closed  # type: ignore[type-var]


_OTHERS = tuple(kind for kind in outbox._ENDS.__args__ if kind is not events.RunSubmitted)

UNHEEDING: dict[str, Bug] = {
    "submitted-asked-for-once": Bug(("submitted",), (("outbox._ENDS", _OTHERS),), ("die", "lost", "cut")),
    "submitted-in-no-name": Bug(
        ("submitted",), (("commands._BY_EVENT", {**commands._BY_EVENT, events.RunSubmitted: _in_no_name}),)
    ),
}
