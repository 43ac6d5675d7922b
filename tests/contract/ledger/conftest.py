"""What the rules of the ledger are tried on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refold.dev.valkey import EmbeddedValkey
from tests.contract.ledger_benches import Bench, MemoryBench, RedisBench


@pytest.fixture(params=["memory", "redis"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Give an empty ledger."""
    if request.param == "memory":
        yield MemoryBench()
        return
    server: EmbeddedValkey = request.getfixturevalue("valkey")
    made = RedisBench(server.url)
    yield made
    made.close()
