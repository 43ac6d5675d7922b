"""A catalog whose records are gone shuts everything: a halt or a revocation may have been among them."""

from __future__ import annotations

from typing import Any

import pytest

from refold.client.catalog import CatalogReader, publish
from refold.core.approval.catalog import UNREADABLE, Catalog
from refold.core.errors import ConflictError
from refold.engine.adapters.kafka.topics import TopicDifference
from refold.engine.ports.log import Reached
from refold.engine.runtime.lanes import Journal, follow_catalog
from tests.roots import ROOT


def why(catalog: Catalog) -> str:
    return catalog.halts.why(agent="a", tool="t", pool="p", requester="ann")


@pytest.mark.parametrize("gone", [1, 40])
def test_a_catalog_that_begins_later_than_its_topic_halts_all_and_lets_nobody_decide(gone: int) -> None:
    read, empty = Catalog(), Catalog()

    read.follow(gone, b"key/x", b"anything")
    empty.reached(gone)

    for catalog in (read, empty):
        assert catalog.lost
        assert why(catalog)
        assert catalog.roles.lost
        assert catalog.current == UNREADABLE


def test_a_hole_in_the_middle_is_a_loss_too() -> None:
    catalog = Catalog()
    catalog.follow(0, b"key/x", b"anything")
    assert not catalog.lost

    catalog.follow(2, b"key/y", b"anything")

    assert catalog.lost


def test_a_catalog_that_is_read_from_its_start_is_whole() -> None:
    catalog = Catalog()
    catalog.reached(0)
    for offset in range(3):
        catalog.follow(offset, b"key/x", b"anything")
    catalog.reached(3)

    assert not catalog.lost
    assert why(catalog) == ""


def test_nothing_is_published_into_a_catalog_that_has_lost_records() -> None:
    lost = Catalog()
    lost.reached(3)
    publisher: Any = None  # no record comes so far

    with pytest.raises(ConflictError, match="partition 1 of the catalog has lost records"):
        publish(publisher, CatalogReader([Catalog(), lost], [], {}), [], ROOT)


def test_a_loss_is_an_alarm_where_nothing_is_left() -> None:
    catalog, journal = Catalog(), Journal()

    follow_catalog(catalog, Reached("catalog", 2, 0), journal)
    follow_catalog(catalog, Reached("catalog", 2, 40), journal)

    assert catalog.lost
    assert journal.news == [("catalog.lost", {"partition": 2, "first": 40, "expected": 0})]


@pytest.mark.parametrize("setting", ["retention.ms", "retention.bytes"])
def test_no_service_starts_where_the_broker_would_delete_what_is_kept_for_ever(setting: str) -> None:
    assert TopicDifference("catalog", setting, "-1", "1000").unfit
    assert not TopicDifference("dead-letter", setting, "1209600000", "1000").unfit
