"""What authors say of money: exact, and refused where it is not."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from refold import Budget, Price, Reserve, UsageError
from refold.cli.platform import smaller_budget
from refold.core.events import Spendable
from refold.core.planning.budgets import narrowed
from refold.core.run.account import in_usd, nano_usd, usage_of
from refold.sdk.prices import Prices


@pytest.mark.parametrize(
    "more", [{"usd": 2.5}, {"usd": "-1"}, {"usd": "NaN"}, {"tokens": -1}, {"calls": True}, {"soft": 0}, {"then": "x"}]
)
def test_a_budget_that_is_none_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Budget(**more)


def test_money_is_rounded_up_and_never_lost() -> None:
    assert nano_usd(Decimal("0.0000000001")) == 1
    assert [in_usd(each) for each in (0, 25, 2_500_000_000)] == ["$0.00", "$0.000000025", "$2.50"]


def test_a_table_prices_what_a_cache_reads_apart() -> None:
    prices = Prices({"a:b": Price(input="2", output="8", cache_read="0.5")})
    usage = {"model": "a:b", "input_tokens": 1_000, "output_tokens": 100, "cache_read_tokens": 400}

    assert prices.of(usage) == (600 * 2 + 100 * 8) * 1_000 + 400 * 500


def test_nobody_knows_what_an_unknown_model_costs() -> None:
    prices = Prices({})
    prices.load()

    assert prices.of({"model": "nobody:nothing", "input_tokens": 1}) is None
    assert prices.of({"model": "openai:gpt-4o-mini", "input_tokens": 1_000_000}) == 150_000_000
    assert "genai-prices" in prices.version


@pytest.mark.parametrize("result", ['{"usage": 7}', '{"usage": {"input_tokens": "7"}}', '"usage"', '{"usage": {', "[]"])
def test_a_result_that_says_no_numbers_says_nothing(result: str) -> None:
    assert usage_of(result) is None


@pytest.mark.parametrize("asked", [Spendable(calls=-1), Spendable(calls=0), Spendable(calls=9), Spendable(root="x")])
def test_no_request_takes_a_limit_away(asked: Spendable) -> None:
    limits = narrowed(Spendable(calls=3), asked)

    assert limits == Spendable(calls=3)


def test_a_budget_is_written_on_the_command_line() -> None:
    assert smaller_budget("usd=0.5,calls=3") == Spendable(nano_usd=500_000_000, calls=3)
    assert smaller_budget("") is None
    for wrong in ("usd", "usd=x", "steps=3", "calls=-1"):
        with pytest.raises(UsageError):
            smaller_budget(wrong)


def test_a_reservation_counts_both_ways() -> None:
    assert Reserve(input_tokens=3, output_tokens=4).tokens == 7
