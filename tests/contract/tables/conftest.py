"""What the rules of views are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.table_benches import Bench, MemoryBench, PostgresBench, SqliteBench, running_postgres
from tests.lent import lend


@pytest.fixture(scope="module")
def postgres(request: pytest.FixtureRequest) -> str:
    """Give the URL of a Postgres that tests share: use a schema of your own."""
    return lend(request, running_postgres)


def made(kind: str, request: pytest.FixtureRequest, folder: Path) -> Bench:
    """Give a bench of a kind."""
    if kind == "memory":
        return MemoryBench()
    return SqliteBench(folder) if kind == "sqlite" else PostgresBench(request.getfixturevalue("postgres"))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Give a database that nobody has used."""
    bench = made(request.param, request, tmp_path)
    yield bench
    bench.views.close()


@pytest.fixture(params=["sqlite", "postgres"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Give a database that outlasts its process."""
    bench = made(request.param, request, tmp_path)
    yield bench
    bench.views.close()


@pytest.fixture
def benches(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Bench]]:
    """Give one of each kind."""
    benches = [made(kind, request, tmp_path) for kind in ("memory", "sqlite", "postgres")]
    yield benches
    for bench in benches:
        bench.views.close()
