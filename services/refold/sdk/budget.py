"""Budgets and limits as authors write them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Literal, get_args

from refold.core.errors import UsageError
from refold.core.events import Spendable
from refold.core.planning.windows import Per, Window
from refold.core.run.account import Reserve, dollars, nano_usd
from refold.sdk.retry import milliseconds

Then = Literal["warn", "ask", "degrade"]


@dataclass(frozen=True, slots=True)
class Budget:
    """Limit of a run and the runs that it waits for: beyond it the run fails with `budget_usd`, say.

    `usd` is a number of dollars, as a text or a Decimal. Every attempt of every tool is one of `calls`. Beyond the part
    `soft` of a limit `then` applies, once per run: `warn` only records `BudgetReached`; `ask` has calls wait for an
    operator (`refold run resolve`); `degrade` has metered calls fail with the code `degrade`, except those whose
    `Reserve` is `cheap`. At most `same` calls with equal arguments are made; more fail with the code `repeated`.
    **Raises** UsageError for an invalid limit.

    **Example**

    >>> Budget(usd="2.50", calls=100, time=timedelta(hours=1), then="ask").limits.nano_usd
    2500000000
    """

    tokens: int = 0
    usd: Decimal | str | int = 0
    calls: int = 0
    time: timedelta = timedelta()
    soft: float = 0.8
    then: Then = "warn"
    same: int = 0

    def __post_init__(self) -> None:
        for name in ("tokens", "calls", "same"):
            number = getattr(self, name)
            # Not `isinstance`: True is an int, too.
            if type(number) is not int or number < 0:
                raise UsageError(f"Budget({name}={number!r})", hint="give a whole number; 0 is any")
        if not isinstance(self.soft, int | float) or not 0 < self.soft <= 1:
            raise UsageError(f"Budget(soft={self.soft!r})", hint="give a part of the limit, above 0 and up to 1")
        if self.then not in get_args(Then):
            raise UsageError(f"Budget(then={self.then!r})", hint=f"it is one of {', '.join(get_args(Then))}")
        _ = self.limits

    @property
    def limits(self) -> Spendable:
        return Spendable(
            tokens=self.tokens,
            nano_usd=nano_usd(dollars(self.usd, "Budget(usd=...)")),
            calls=self.calls,
            ms=milliseconds(self.time, "Budget(time=...)"),
            soft_percent=max(1, round(self.soft * 100)),
            then=self.then,
            same=self.same,
        )


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of all runs of a day or a month, in UTC: beyond it a run fails with `limit_usd`, say.

    It counts the runs of one `agent`, or of all. With a `label` each of its values, a tenant or user, has such a limit;
    runs without the label count for their requester. For the rest see `Budget`. **Raises** UsageError for an invalid
    limit.

    **Example**

    >>> Limit(per="day", label="tenant", usd="50", then="ask").window.limits.nano_usd
    50000000000
    """

    per: Per
    agent: str = ""
    label: str = ""
    tokens: int = 0
    usd: Decimal | str | int = 0
    calls: int = 0
    soft: float = 0.8
    then: Then = "warn"

    def __post_init__(self) -> None:
        if self.per not in get_args(Per):
            raise UsageError(f"Limit(per={self.per!r})", hint=f"it is one of {', '.join(get_args(Per))}")
        limits = self.window.limits
        if not (limits.tokens or limits.nano_usd or limits.calls):
            raise UsageError("a Limit limits nothing", hint='give it usd="50", tokens= or calls=')

    @property
    def window(self) -> Window:
        budget = Budget(tokens=self.tokens, usd=self.usd, calls=self.calls, soft=self.soft, then=self.then)
        return Window(self.per, self.agent, self.label, budget.limits)


def windows_of(limits: Iterable[Limit]) -> tuple[Window, ...]:
    """Limits of an app, for planners. **Raises** UsageError for two with the same scope."""
    windows = [limit.window for limit in limits]
    if len({(window.per, window.agent, window.label) for window in windows}) < len(windows):
        raise UsageError("two limits are about the same runs", hint="one has usd=, tokens= and calls=")
    return tuple(windows)


def checked_reserve(reserve: Reserve) -> Reserve:
    if not isinstance(reserve, Reserve):
        raise UsageError(f"reserve={reserve!r}", hint="write reserve=Reserve(model=..., input_tokens=...)")
    numbers = (reserve.input_tokens, reserve.output_tokens)
    if not all(type(number) is int and number >= 0 for number in numbers) or not isinstance(reserve.model, str):
        raise UsageError(f"reserve={reserve!r}", hint="tokens are whole numbers, and the model is provider:name")
    if reserve.usd is not None:
        dollars(reserve.usd, "Reserve(usd=...)")
    return reserve
