"""Usage that no budget bills has a price, of a table that the row and the generation name."""

from __future__ import annotations

import pytest
from genai_prices import Usage, calc_price

from refold.console.projections.service import serving, shipped, verify
from refold.console.projections.shipped.projection import Shipped
from refold.console.projections.shipped.tables import RUNS
from refold.core.errors import ConflictError
from refold.core.events import CallCompleted, Event
from refold.sdk.prices import Price
from tests.projections.histories import USAGE, begun, call, entries, log_of
from tests.projections.memory_views import MemoryViewDatabase
from tests.projections.source import ListedLog, attentive
from tests.projections.test_service import settle
from tests.projections.viewed import Viewed

OWN = {"acme:small": Price("3", "9")}
KNOWN = '{"usage":{"model":"openai:gpt-4o-mini","input_tokens":1000,"output_tokens":10}}'


def test_a_package_has_the_prices_that_the_app_has_not() -> None:
    paid: list[list[Event]] = [
        [*begun(), *call(1)],
        [CallCompleted(1, 1, USAGE), *call(2)],
        [CallCompleted(2, 1, KNOWN)],
    ]
    (ours,) = shipped(OWN)

    row = Viewed.of(log_of(entries("r-1", *paid)), projection=ours).row(RUNS, "r-1")

    known = calc_price(Usage(input_tokens=1000, output_tokens=10), "gpt-4o-mini", provider_id="openai").total_price
    assert row["nano_usd"] == 70 * 3_000 + 30 * 9_000 + known * 1_000_000_000
    assert row["price_table"].startswith("own-")
    assert "+genai-prices-" in row["price_table"]


def test_views_of_other_prices_are_built_anew_and_not_taken_for_wrong() -> None:
    log, database = ListedLog(), MemoryViewDatabase()
    for key, value in entries("r-1", [*begun(), *call(1)], [CallCompleted(1, 1, USAGE)]):
        log.write(key, value)
    (plain,) = shipped()
    settle(attentive(plain, database, log))
    (ours,) = shipped(OWN)

    with pytest.raises(ConflictError, match="was made by inputs genai-prices-.*, and here is own-"):
        verify(ours, database, MemoryViewDatabase(), log)
    settle(attentive(ours, database, log))

    assert serving(database, Shipped.name) == 2
    assert verify(ours, database, MemoryViewDatabase(), log).equal
    (row,) = database.public[RUNS.name].scan(RUNS)
    assert row[RUNS.places["nano_usd"]] == 70 * 3_000 + 30 * 9_000
