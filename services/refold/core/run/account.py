"""Spending of a run, against its budget: folded from its own events, in integers."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

from immutables import Map

from refold.core.events import Failure, Spendable, Used

_NOTHING: Map[Any, Any] = Map()

COUNTED_MOST = 1 << 60
"""Cap of any count: results may report any number, and a sum has to fit a record."""


class Amount(NamedTuple):
    """So much of everything that a budget bounds. **Units**: billionths of a dollar."""

    tokens: int = 0
    nano_usd: int = 0
    calls: int = 0

    def plus(self, other: Amount) -> Amount:
        """Both together, up to `COUNTED_MOST`."""
        return Amount(*(min(COUNTED_MOST, one + more) for one, more in zip(self, other, strict=True)))

    def minus(self, other: Amount) -> Amount:
        return Amount(self.tokens - other.tokens, self.nano_usd - other.nano_usd, self.calls - other.calls)

    def least(self, other: Amount) -> Amount:
        return Amount(*map(min, self, other))


NOTHING = Amount()


class Booked(NamedTuple):
    """What an attempt may take, and since when that is reserved. **Units**: milliseconds since 1970."""

    amount: Amount
    since_ms: int


class BudgetAccount(NamedTuple):
    """Never changes: what becomes of it is another. Only a run that something is counted of has one.

    `spent` is what was billed, to it and to those of its children that are over, with the calls of all. `booked` is
    what is reserved and not billed, by call and attempt: under way, or nobody knows what came of it; `open` is what it
    adds up to. `lost` is of children what may be paid. `most` is what an attempt of a step may take, and whether it
    is the cheaper way. `told` are the budgets whose soft threshold was reached, `passed`: an operator lets it go on
    beyond. `heard` are the runs below that were billed, `asked` how often each call was asked for, where that is
    bounded. `since_ms` is when the run was asked for, `own` what it counts for itself, without any run below.
    """

    limits: Spendable = Spendable()
    since_ms: int = 0
    spent: Amount = NOTHING
    open: Amount = NOTHING
    lost: Amount = NOTHING
    booked: Map[tuple[int, int], Booked] = _NOTHING
    most: Map[int, tuple[Amount, bool]] = _NOTHING
    told: frozenset[str] = frozenset()
    passed: bool = False
    heard: frozenset[str] = frozenset()
    asked: Map[bytes, int] = _NOTHING
    own: Amount = NOTHING

    def freed(self, later_ms: int) -> BudgetAccount:
        """The same with nothing reserved, and begun so much later."""
        own, since_ms = self.own.minus(self.open), self.since_ms + later_ms
        return self._replace(booked=_NOTHING, open=NOTHING, own=own, since_ms=since_ms)

    @property
    def total(self) -> Amount:
        return Amount(*map(sum, zip(self.spent, self.open, self.lost, strict=True)))

    @property
    def used(self) -> Used:
        """The same, as others are told of it when the run is over."""
        all_, lost = self.total, self.lost.plus(self.open)
        return Used(*all_, lost.tokens, lost.nano_usd)

    def __repr__(self) -> str:
        parts = (sorted(each.items()) if isinstance(each, Map) else each for each in self)
        return f"BudgetAccount({', '.join(repr(sorted(p)) if isinstance(p, frozenset) else repr(p) for p in parts)})"


BUDGET_CODES = {"tokens": "budget_tokens", "usd": "budget_usd", "calls": "budget_calls", "seconds": "budget_seconds"}
"""The failure of a run that has used up its budget, by what of it."""


LIMIT_CODES = {"tokens": "limit_tokens", "usd": "limit_usd", "calls": "limit_calls"}
"""The failure of a run that meets a limit of all runs of a day or month, by what of it."""


def of_budget(failure: Failure | None) -> bool:
    """True if a failure says that a budget, or a limit of a window, is used up."""
    return failure is not None and failure.code in {*BUDGET_CODES.values(), *LIMIT_CODES.values()}


def call_digest(tool: str, args: str) -> bytes:
    return blake2b(f"{len(tool)}:{tool}{args}".encode(), digest_size=16).digest()
