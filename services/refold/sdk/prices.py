"""Prices of model calls: by the app's own table, else by `genai-prices`, if installed."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from importlib import metadata
from typing import Any

from refold.core.run.account import dollars, nano_usd, tokens_of

_KINDS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for a million tokens, text or Decimal. The input includes cached tokens. **Raises** UsageError."""

    input: Decimal | str | int
    output: Decimal | str | int
    cache_read: Decimal | str | int | None = None
    cache_write: Decimal | str | int | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cache_read", "cache_write"):
            if (price := getattr(self, name)) is not None:
                dollars(price, f"Price({name}=...)")

    def of(self, fresh: int, output: int, read: int, written: int) -> Decimal:
        """Cost in dollars. `fresh` counts all tokens of the input, also those `read` from and `written` to a cache."""
        rates = (self.input, self.output, self._cache_rate(self.cache_read), self._cache_rate(self.cache_write))
        counts = (max(0, fresh - read - written), output, read, written)
        return sum((Decimal(rate) * count for rate, count in zip(rates, counts, strict=True)), Decimal()) / 1_000_000

    def _cache_rate(self, rate: Decimal | str | int | None) -> Decimal | str | int:
        return self.input if rate is None else rate


class Prices:
    """Price list of an app: its own table, then `genai-prices` once loaded."""

    def __init__(self, own: Mapping[str, Price]) -> None:
        self.own = dict(own)
        self._price: Callable[..., Decimal | None] | None = None

    def load(self) -> None:
        """Load `genai-prices`, if installed: that takes a second."""
        if self._price is not None:
            return
        try:
            from genai_prices import Usage, calc_price
        except ImportError:
            return

        @lru_cache(maxsize=4_096)
        def price(model: str, provider: str | None, counts: tuple[int, ...], hour: int = 0) -> Decimal | None:
            usage = Usage(**dict(zip(_KINDS, counts, strict=True)))
            at = datetime.fromtimestamp(hour * 3_600, UTC) if hour else None
            try:
                return calc_price(usage, model, provider_id=provider, genai_request_timestamp=at).total_price
            except (LookupError, ValueError):
                return None

        price("gpt-4o-mini", "openai", (1, 1, 0, 0))
        self._price = price

    @property
    def version(self) -> str:
        return self._version_text(loaded=self._price is not None)

    @property
    def table(self) -> str:
        """Version of the price list as it will be after `load`, without loading it."""
        with suppress(metadata.PackageNotFoundError):
            return self._version_text(loaded=bool(metadata.version("genai-prices")))
        return self._version_text(loaded=False)

    def _version_text(self, *, loaded: bool) -> str:
        own = blake2b(repr(sorted(self.own.items())).encode(), digest_size=4).hexdigest() if self.own else ""
        parts = [f"own-{own}"] if own else []
        if loaded:
            parts.append(f"genai-prices-{metadata.version('genai-prices')}")
        return "+".join(parts) or "none"

    def of(self, usage: Mapping[str, Any], at_ms: int = 0) -> int | None:
        """Return the cost of a usage; None without a known price. Some prices change with the time of use, `at_ms` (0:
        now). **Units**: billionths of a dollar, rounded up."""
        counts = tuple(usage.get(name, 0) for name in _KINDS)
        model = usage.get("model")
        if not isinstance(model, str) or tokens_of(usage) is None or not all(type(n) is int and n >= 0 for n in counts):
            return None
        if (own := self.own.get(model)) is not None:
            return nano_usd(own.of(*counts))
        if self._price is None or not model:
            return None
        provider, _, name = model.rpartition(":")
        # By the hour: by the millisecond, the cache would have no hits.
        price = self._price(name, provider or None, counts, at_ms // 3_600_000)
        return None if price is None else nano_usd(price)
