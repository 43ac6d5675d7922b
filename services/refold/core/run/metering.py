"""Usage of a call: estimated by its sender, and reported in its result."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any

import orjson

from refold.core.errors import UsageError

NANO = 1_000_000_000

COUNTED = ("input_tokens", "output_tokens")
"""Usage fields that count as tokens. Cached tokens are part of the first."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reservation of each attempt: tokens of a `model` (`provider:name`), or `usd`.

    `cheap`: the call is the cheaper alternative already, for which a budget with `degrade` reserves its remainder.
    """

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
    try:
        return orjson.loads(result)
    except ValueError:  # it refuses half of a surrogate pair, which some models send
        pass
    try:
        return json.loads(result)
    except (ValueError, RecursionError):
        return None


def tokens_of(usage: Mapping[str, Any]) -> int | None:
    """Tokens of a usage; None if it has no valid numbers of tokens."""
    counts = [usage[name] for name in COUNTED if name in usage]
    return sum(counts) if counts and all(type(count) is int and count >= 0 for count in counts) else None
