"""Real servers for any test that asks: started on first use, one of each per session (or xdist worker)."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import structlog
from hypothesis import settings

from refold.dev.kafka import EmbeddedKafka
from refold.dev.valkey import EmbeddedValkey
from tests.lent import end_unused, lend, note_users, release_clients
from tests.order import Together, longest_first

# While one works on a rule, a few examples of each property say enough; `make test` asks for more of them.
settings.register_profile("quick", max_examples=10, deadline=None)
settings.register_profile("whole", max_examples=30, deadline=None)
settings.load_profile("quick")

# The renderer that structlog starts with prints all locals beside a traceback: a gateway in memory takes it seconds.
*_, _renderer = structlog.get_config()["processors"]
_renderer.exception_formatter = structlog.dev.plain_traceback


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Leave modules and items out of garbage collections: there are many, they are made at once, and stay."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """See `longest_first`."""
    longest_first(items, note_users(config, items))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """See `release_clients` and `end_unused`."""
    yield
    if nextitem is None or nextitem.path != item.path:
        release_clients()
    end_unused(item.config, nextitem)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together | None:
    """See `Together`."""
    return Together(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def import_path() -> Iterator[None]:
    """Put `sys.path` back after each test: loading an application adds its folder, which no other test is to see."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undo the logging that a service or a command of a test configures: the next one may capture log lines."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedKafka:
    """Give a running broker that all tests share: use topics of your own, and do not stop it."""
    return lend(request, lambda: EmbeddedKafka(tmp_path_factory.mktemp("kafka")))


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """Give a running Valkey that all tests of the session share: use keys of your own, and do not stop it."""
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server
