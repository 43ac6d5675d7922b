"""Real servers for any test that asks: started on first use, one of each per session (or xdist worker)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refold.embedded.kafka import EmbeddedKafka
from refold.embedded.valkey import EmbeddedValkey


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Give a running broker that all tests share: use topics of your own, and do not stop it."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """Give a running Valkey that all tests of the session share: use keys of your own, and do not stop it."""
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server
