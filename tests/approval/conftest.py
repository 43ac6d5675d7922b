"""The topics of the approval service on a log in memory, and a service on them."""

from __future__ import annotations

import pytest

from tests.approval.driving import Process, World


@pytest.fixture
def world() -> World:
    """Give topics with keys and roles, and nothing asked yet."""
    return World()


@pytest.fixture
def process(world: World) -> Process:
    """Give a service that serves them all."""
    return Process(world).run()
