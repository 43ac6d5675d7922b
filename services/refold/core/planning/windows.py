"""Limits of all runs of an agent, tenant or user in a day or month. Usage follows from the log alone, so every reader
gets the same sums. A bill replaces its reservation in the window of the reservation."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Literal, NamedTuple

from refold.core.events import CallBilled, CallDispatched, CallReserved, Entry, Spendable
from refold.core.messages import WindowSpent
from refold.core.run.account import NOTHING, Amount

Per = Literal["day", "month"]

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Window:
    """Limit on all runs of an `agent` (any, if empty) `per` day or month of UTC. With a `label` each of its values has
    its own; runs without the label count for their requester."""

    per: Per
    agent: str
    label: str
    limits: Spendable


class WindowKey(NamedTuple):
    """Key of a sum: a period and its runs, with the digest of the label's `value`. See `WindowSpent`."""

    window: str
    agent: str
    label: str
    value: str

    def named(self, value: str) -> str:
        agent = f" agent={self.agent}" if self.agent else ""
        return f"{self.window}{agent}" + (f" {self.label}={value}" if self.label else "")


class Bound(NamedTuple):
    """Limit that binds a run; `value` is the label's value in plain text."""

    key: WindowKey
    value: str
    limits: Spendable


class Counted(NamedTuple):
    """Usage by an event at `at_ms`: `amount`, the part `held` until it is billed, and the reservation `freed` by it."""

    at_ms: int
    amount: Amount
    held: Amount = NOTHING
    freed: Amount = NOTHING


def key_of(spent: WindowSpent) -> WindowKey:
    """Key of a message's sum. Versions without `held_tokens` send the label's value in clear: it is hashed here."""
    value = spent.value if spent.held_tokens >= 0 or not spent.label else value_digest(spent.value)
    return WindowKey(spent.window, spent.agent, spent.label, value)


@lru_cache(maxsize=4_096)
def value_digest(value: str) -> str:
    # Names of tenants and users stay out of topics that outlive their runs.
    return blake2b(value.encode(), digest_size=12).hexdigest()


def window_at(per: Per, at_ms: int) -> str:
    """Window of a time. **Units**: milliseconds since 1970, UTC."""
    day = datetime.fromtimestamp(at_ms / 1000, UTC).date()
    return day.isoformat() if per == "day" else f"{day:%Y-%m}"


def end_of(window: str) -> int:
    """End of a window. **Units**: milliseconds since 1970, UTC. **Raises** ValueError if it is no window."""
    try:
        if len(window) > len("2026-11"):
            after = date.fromisoformat(window) + timedelta(days=1)
        else:
            after = (date.fromisoformat(f"{window}-01") + timedelta(days=31)).replace(day=1)
    except OverflowError:
        raise ValueError(f"{window} has no end in the calendar") from None
    return int(datetime(after.year, after.month, after.day, tzinfo=UTC).timestamp()) * 1000


def binding(
    windows: Iterable[Window], agent: str, labels: Mapping[str, str], requester: str, at_ms: int
) -> Iterator[Bound]:
    """Limits that bind a run at a time, each with the key of the sum that it bounds."""
    for limit in windows:
        if not limit.agent or limit.agent == agent:
            value = value_of(limit.label, labels, requester) if limit.label else ""
            digest = value_digest(value) if value else ""
            yield Bound(WindowKey(window_at(limit.per, at_ms), limit.agent, limit.label, digest), value, limit.limits)


def value_of(label: str, labels: Mapping[str, str], requester: str) -> str:
    """Subject of a run under a limit of this label: the label's value, or the requester."""
    return labels.get(label) or f" without, asked for by {requester}"


def taken_by(entry: Entry) -> Iterator[Counted]:
    """Usage by an entry: calls sent, reservations, and bills, which count at the time of their reservation."""
    for event in entry.events:
        if isinstance(event, CallDispatched):
            yield Counted(entry.at_ms, Amount(calls=1))
        elif isinstance(event, CallReserved) and event.attempt:
            amount = Amount(event.tokens, event.nano_usd)
            yield Counted(entry.at_ms, amount, held=amount)
        elif isinstance(event, CallBilled) and event.since_ms:
            freed = NOTHING if event.twice else Amount(event.for_tokens, event.for_nano_usd)
            yield Counted(event.since_ms, Amount(event.tokens, event.nano_usd), freed=freed)
