"""Budgets as they are written on the command line."""

from __future__ import annotations

from refold.core.errors import UsageError
from refold.core.events import Spendable
from refold.core.run.metering import dollars, nano_usd


def smaller_budget(text: str) -> Spendable | None:
    """`usd=2.50,tokens=10000,calls=20`, some of it, or nothing. **Raises** UsageError."""
    said: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        if name == "usd":
            said["nano_usd"] = nano_usd(dollars(number, "--budget usd="))
        elif name in ("tokens", "calls") and number.isdecimal():
            said[name] = int(number)
        else:
            raise UsageError(f"--budget {part}", hint="write usd=2.50,tokens=10000,calls=20, or some of that")
    return Spendable(**said) if said else None  # type: ignore[arg-type]
