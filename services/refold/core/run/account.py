"""Usage of calls, as estimated by their senders and reported in results, and spending of a run against its budget, as
folded from its own events, in integers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson
from immutables import Map

from refold.core.errors import UsageError
from refold.core.events import Failure, Spendable, Used
from refold.core.run.persistent import EMPTY, stable_repr

NANO = 1_000_000_000

COUNTED = ("input_tokens", "output_tokens")
"""Usage fields that count as tokens. Cached tokens are part of the first."""

COUNTED_MOST = 1 << 60
"""Cap of any count: results may report any number, and a sum must fit into a record."""

BUDGET_CODES = {"tokens": "budget_tokens", "usd": "budget_usd", "calls": "budget_calls", "seconds": "budget_seconds"}
LIMIT_CODES = {"tokens": "limit_tokens", "usd": "limit_usd", "calls": "limit_calls"}


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reservation of each attempt: tokens of a `model` (`provider:name`), or `usd`. `cheap`: the call is the cheaper
    alternative already, for which a budget with `degrade` reserves its remainder."""

    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    usd: Decimal | None = None
    cheap: bool = False

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def usage(self) -> dict[str, Any]:
        return {"model": self.model, "input_tokens": self.input_tokens, "output_tokens": self.output_tokens}


def nano_usd(usd: Decimal) -> int:
    # Rounded up: a booking is never less than the payment.
    return int((usd * NANO).to_integral_value(ROUND_CEILING))


def dollars(usd: Decimal | str | int, subject: str) -> Decimal:
    """Amount of money. **Raises** UsageError that names `subject`, also for a float, which is inexact."""
    try:
        if isinstance(usd, str | int | Decimal) and not isinstance(usd, bool):
            amount = Decimal(usd)
            if amount.is_finite() and 0 <= amount < 1_000_000_000:
                return amount
    except InvalidOperation:
        pass
    raise UsageError(f"{subject} is {usd!r}", hint='write dollars as a text: "2.50"')


def in_usd(nano: int) -> str:
    """Billionths of a dollar as text: `$0.0125`."""
    text = f"{Decimal(nano).scaleb(-9):f}"
    whole, _, part = text.partition(".")
    return f"${whole}.{part.rstrip('0').ljust(2, '0')}"


def usage_of(result: str) -> Mapping[str, Any] | None:
    """Usage in a call's JSON result, `{"usage": {"model": ..., "input_tokens": ...}}`, or None."""
    if '"usage"' not in result:  # most results have none, and some are long
        return None
    parsed = _parsed(result)
    usage = parsed.get("usage") if isinstance(parsed, dict) else None
    return usage if isinstance(usage, dict) and tokens_of(usage) is not None else None


def _parsed(result: str) -> Any:
    with suppress(ValueError):  # it refuses half of a surrogate pair, which some models send
        return orjson.loads(result)
    with suppress(ValueError, RecursionError):
        return json.loads(result)
    return None


def tokens_of(usage: Mapping[str, Any]) -> int | None:
    """Tokens of a usage; None if it has no valid numbers of tokens."""
    counts = [usage[name] for name in COUNTED if name in usage]
    return sum(counts) if counts and all(type(count) is int and count >= 0 for count in counts) else None


class Amount(NamedTuple):
    """Amounts that a budget bounds. **Units**: billionths of a dollar."""

    tokens: int = 0
    nano_usd: int = 0
    calls: int = 0

    def plus(self, other: Amount) -> Amount:
        return Amount(*(min(COUNTED_MOST, one + more) for one, more in zip(self, other, strict=True)))

    def minus(self, other: Amount) -> Amount:
        return Amount(self.tokens - other.tokens, self.nano_usd - other.nano_usd, self.calls - other.calls)


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
    reached: frozenset[str] = frozenset()  # budgets whose soft threshold was reached
    passed: bool = False  # an operator lets the run exceed soft thresholds
    billed: frozenset[str] = frozenset()  # billed runs below this one
    repeats: Map[bytes, int] = EMPTY  # number of equal calls, if bounded
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


def of_budget(failure: Failure | None) -> bool:
    return failure is not None and failure.code in {*BUDGET_CODES.values(), *LIMIT_CODES.values()}


def call_digest(tool: str, args: str) -> bytes:
    return blake2b(f"{len(tool)}:{tool}{args}".encode(), digest_size=16).digest()
