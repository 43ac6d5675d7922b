"""Limits that bind all runs of an agent, a tenant or a user in a day or a month, whatever their homes.

What an entry takes of them follows from the entry and the request of its run alone, so that whoever reads the log adds
up the same. A reservation counts for the window in which it was made, and what it was billed takes its place there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal, NamedTuple

from refold.core.events import CallBilled, CallDispatched, CallReserved, Entry, Spendable
from refold.core.run.purse import NOTHING, Amount

Per = Literal["day", "month"]

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Window:
    """A limit: what all runs of an `agent` (any, if empty) may take `per` day or month of UTC.

    With a `label` it is one for each value of that, and runs without it are free.
    """

    per: Per
    agent: str
    label: str
    limits: Spendable


class WindowKey(NamedTuple):
    """What is added up: a window, and whose runs. See `WindowSpent`."""

    window: str
    agent: str
    label: str
    value: str

    def __str__(self) -> str:
        agent = f" agent={self.agent}" if self.agent else ""
        return f"{self.window}{agent}" + (f" {self.label}={self.value}" if self.label else "")


def window_at(per: Per, at_ms: int) -> str:
    """The window that a time is in. **Units**: milliseconds since 1970, UTC."""
    day = datetime.fromtimestamp(at_ms / 1000, UTC).date()
    return day.isoformat() if per == "day" else f"{day:%Y-%m}"


def end_of(window: str) -> int:
    """When a window ends. **Units**: milliseconds since 1970, UTC. **Raises** ValueError for what is none."""
    try:
        if len(window) > len("2026-11"):
            after = date.fromisoformat(window) + timedelta(days=1)
        else:
            after = (date.fromisoformat(f"{window}-01") + timedelta(days=31)).replace(day=1)
    except OverflowError:
        raise ValueError(f"{window} has no end in the calendar") from None
    return int(datetime(after.year, after.month, after.day, tzinfo=UTC).timestamp()) * 1000


def binding(
    windows: Iterable[Window], agent: str, labels: Mapping[str, str], at_ms: int
) -> Iterator[tuple[WindowKey, Spendable]]:
    """The limits that bind a run of this agent, with these labels, at a time."""
    for each in windows:
        if (not each.agent or each.agent == agent) and (not each.label or each.label in labels):
            value = labels[each.label] if each.label else ""
            yield WindowKey(window_at(each.per, at_ms), each.agent, each.label, value), each.limits


def taken_by(entry: Entry) -> dict[int, Amount]:
    """What an entry takes, or gives back, by the time for which that counts."""
    found: dict[int, Amount] = {}
    for event in entry.events:
        at_ms = entry.at_ms
        if isinstance(event, CallDispatched):
            amount = Amount(calls=1)
        elif isinstance(event, CallReserved) and event.attempt:
            amount = Amount(event.tokens, event.nano_usd)
        elif isinstance(event, CallBilled) and event.since_ms:
            amount, at_ms = Amount(event.tokens, event.nano_usd), event.since_ms
            if not event.twice:
                amount = amount.minus(Amount(event.for_tokens, event.for_nano_usd))
        else:
            continue
        found[at_ms] = found.get(at_ms, NOTHING).plus(amount)
    return found
