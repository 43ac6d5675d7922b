"""Halts in the catalog."""

from refold.client.reading.model import ReadModel
from refold.core.approval.catalog import Halts


class HaltRow(ReadModel):
    """A halt. `scope` is `agent`, `tool`, `pool`, `requester` or `all`; `what` is scope and name in one text."""

    what: str
    scope: str
    name: str
    reason: str


def halt_rows(halts: Halts) -> list[HaltRow]:
    return [
        HaltRow(what=f"{scope} {name}".rstrip(), scope=scope, name=name, reason=reason)
        for (scope, name), reason in sorted(halts.by_name.items())
    ]
