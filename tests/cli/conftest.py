"""One `refold dev` for all tests of the command line, started as a user starts it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.approval.driving import Process, World
from tests.cli.desk import Desk
from tests.cli.policing import cluster, digest, files
from tests.cli.terminal import Dev, served
from tests.lent import lend

__all__ = ["cluster", "digest", "files"]

APP = Path(__file__).with_name("app.py")


@contextmanager
def _served(data: Path) -> Iterator[Dev]:
    (data / "effects").touch()
    shorter = {"REFOLD_EXECUTOR__CHAINED_LEASE_MS": "4000", "REFOLD_EXECUTOR__GRACE_MS": "4000"}
    with served(APP, data, EFFECTS=str(data), **shorter) as running:
        yield running
        pids = [pid for pids in running.state["processes"].values() for pid in pids]
    assert not any(map(_runs, pids))


def _runs(pid: int) -> bool:
    """True if it is still a process of Refold: its number may be that of a thread of somebody else by now."""
    try:
        return b"refold" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture(scope="module")
def dev(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dev:
    """Give a running platform that serves `app.py`; its processes may be killed."""
    return lend(request, lambda: _served(tmp_path_factory.mktemp("dev")))


@pytest.fixture
def world() -> World:
    """Give the topics of the approval service on a log in memory."""
    return World()


@pytest.fixture
def desk(world: World) -> Desk:
    """Give the place where votes are handed in, with a service that lives."""
    return Desk(world, Process(world).run())
