"""Spending of a run against its budget, folded from its own events, in integers."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from immutables import Map

from refold.core.events import Failure, Spendable, Used
from refold.core.run.persistent import EMPTY, stable_repr

COUNTED_MOST = 1 << 60
"""Cap of any count: results may report any number, and a sum must fit into a record."""


class Amount(NamedTuple):
    """Amounts that a budget bounds. **Units**: billionths of a dollar."""

    tokens: int = 0
    nano_usd: int = 0
    calls: int = 0

    def plus(self, other: Amount) -> Amount:
        return Amount(*(min(COUNTED_MOST, one + more) for one, more in zip(self, other, strict=True)))

    def minus(self, other: Amount) -> Amount:
        return Amount(self.tokens - other.tokens, self.nano_usd - other.nano_usd, self.calls - other.calls)

    def least(self, other: Amount) -> Amount:
        return Amount(*map(min, self, other))


NOTHING = Amount()


class Booked(NamedTuple):
    """Reservation of an attempt and its time. **Units**: milliseconds since 1970."""

    amount: Amount
    since_ms: int


class BudgetAccount(NamedTuple):
    """Immutable spending of a run with a budget or limits."""

    limits: Spendable = Spendable()
    since_ms: int = 0
    spent: Amount = NOTHING  # billed to the run and its finished children, with the calls of all
    open: Amount = NOTHING  # sum of `booked`
    lost: Amount = NOTHING  # uncertain part of the children's usage
    booked: Map[tuple[int, int], Booked] = EMPTY  # reserved and not billed, by call and attempt
    most: Map[int, tuple[Amount, bool]] = EMPTY  # by step: reservation per attempt, and if it is the cheaper way
    told: frozenset[str] = frozenset()  # budgets whose soft threshold was reached
    passed: bool = False  # an operator lets the run exceed soft thresholds
    heard: frozenset[str] = frozenset()  # billed runs below this one
    asked: Map[bytes, int] = EMPTY  # number of equal calls, if bounded
    own: Amount = NOTHING  # usage without children

    def freed(self, later_ms: int) -> BudgetAccount:
        """Account without reservations, its start moved by `later_ms`."""
        own, since_ms = self.own.minus(self.open), self.since_ms + later_ms
        return self._replace(booked=EMPTY, open=NOTHING, own=own, since_ms=since_ms)

    @property
    def total(self) -> Amount:
        return Amount(*map(sum, zip(self.spent, self.open, self.lost, strict=True)))

    @property
    def used(self) -> Used:
        all_, lost = self.total, self.lost.plus(self.open)
        return Used(*all_, lost.tokens, lost.nano_usd)

    def __repr__(self) -> str:
        return stable_repr(self)


BUDGET_CODES = {"tokens": "budget_tokens", "usd": "budget_usd", "calls": "budget_calls", "seconds": "budget_seconds"}


LIMIT_CODES = {"tokens": "limit_tokens", "usd": "limit_usd", "calls": "limit_calls"}


def of_budget(failure: Failure | None) -> bool:
    return failure is not None and failure.code in {*BUDGET_CODES.values(), *LIMIT_CODES.values()}


def call_digest(tool: str, args: str) -> bytes:
    return blake2b(f"{len(tool)}:{tool}{args}".encode(), digest_size=16).digest()
