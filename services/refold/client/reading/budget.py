"""Spending of runs: budgets, and limits per day and month."""

from collections.abc import Iterable
from typing import Self

from refold.client.reading.history import ReadRecord
from refold.client.reading.model import ReadModel
from refold.core.events import Spendable, Used
from refold.core.messages import WindowSpent
from refold.core.planning.windows import WindowKey, key_of
from refold.core.run.account import NOTHING, Amount
from refold.core.run.state import RunState
from refold.core.wire import codec


class Spending(ReadModel):
    """An amount. **Units**: billionths of a dollar; in a limit, 0 is any amount."""

    tokens: int
    nano_usd: int
    calls: int

    @classmethod
    def of(cls, amount: Spendable | Used | Amount) -> Self:
        return cls(tokens=amount.tokens, nano_usd=amount.nano_usd, calls=amount.calls)


class RunLimits(Spending):
    """The limits of a run. **Units**: as `Spending`; `ms` in milliseconds."""

    ms: int


class MaybePaid(ReadModel):
    """Spending whose outcome is unknown: no executor has reported the outcome of the calls."""

    tokens: int
    nano_usd: int


class RunBudget(ReadModel):
    """Spending of a run and its finished children, and limits. `reached`: budgets above their soft threshold."""

    used: Spending
    maybe_paid: MaybePaid
    limits: RunLimits
    soft_percent: int
    then: str
    reached: list[str]


class LimitInUse(ReadModel):
    """A limit per day or month, and the spending in that time. `value` is the digest of the label's value, or `rest`.

    `reached`: `hard` or `soft`, by the amount that is used up most; empty below both.
    """

    window: str
    agent: str
    label: str
    value: str
    spent: Spending
    limits: Spending
    soft_percent: int
    then: str
    reached: str


def budget_of(state: RunState) -> RunBudget | None:
    if (account := state.account) is None:
        return None
    used, limits = account.used, account.limits
    return RunBudget(
        used=Spending.of(used),
        maybe_paid=MaybePaid(tokens=used.lost_tokens, nano_usd=used.lost_nano_usd),
        limits=RunLimits(tokens=limits.tokens, nano_usd=limits.nano_usd, calls=limits.calls, ms=limits.ms),
        soft_percent=limits.soft_percent,
        then=limits.then,
        reached=sorted(account.reached),
    )


def limits_in_use(records: Iterable[ReadRecord]) -> list[LimitInUse]:
    """Limits with spending, from `budget-spent`, newest windows first; a planner's last second may be missing."""
    reports: dict[bytes, WindowSpent] = {}
    for record in records:
        if record.value is None:
            reports.pop(record.key or b"", None)
        # Each report has copies in all partitions, for their lanes: counted, they would multiply the spending.
        elif (spent := codec.decode_known(WindowSpent, record.value)) is not None and spent.lane == record.partition:
            reports[record.key or b""] = spent
    return limits_of(reports.values())


def limits_of(reports: Iterable[WindowSpent]) -> list[LimitInUse]:
    lanes: dict[WindowKey, dict[int, WindowSpent]] = {}
    # Of two reports of a lane the one further in its log counts: a planner that was replaced may write late.
    for spent in sorted(reports, key=lambda report: report.log):
        lanes.setdefault(key_of(spent), {})[spent.lane] = spent
    ordered = sorted(sorted(lanes), key=lambda key: key.window, reverse=True)
    return [_limit_in_use(key, list(lanes[key].values())) for key in ordered]


def _limit_in_use(key: WindowKey, reports: list[WindowSpent]) -> LimitInUse:
    spent, limits = NOTHING, reports[-1].limits
    for report in reports:
        spent = spent.plus(Amount(report.tokens, report.nano_usd, report.calls))
    pairs = zip(spent, (limits.tokens, limits.nano_usd, limits.calls), strict=True)
    used = max((amount * 100 / most for amount, most in pairs if most), default=0)
    return LimitInUse(
        **key._asdict(),
        spent=Spending.of(spent),
        limits=Spending.of(limits),
        soft_percent=limits.soft_percent,
        then=limits.then,
        reached="hard" if used >= 100 else "soft" if used > limits.soft_percent else "",
    )
