"""Postgres tells of changes to whoever waits for them."""

from __future__ import annotations

import threading
import time

import pytest

from refold.console.projections.shipped.projection import Shipped
from refold.console.sql.opening import open_views
from refold.core.errors import UnreachableError
from refold.engine.ports.tables import ViewChanges
from tests.contract.table_benches import postgres_server
from tests.waiting import eventually


def test_who_waits_hears_of_commits_of_another_process_also_after_the_server_was_away() -> None:
    with postgres_server() as server:
        url = server.get_uri()
        writes, waits = open_views(url), open_views(url)
        writes.create("telling", 1, Shipped().tables, {"log": "x"})
        store = writes.store("telling", 1)
        assert waits.wait(0.0)

        timer = threading.Timer(0.3, store.commit, [ViewChanges((), notes={"a": "b"})])
        timer.start()
        begun = time.monotonic()
        assert waits.wait(20.0)
        assert time.monotonic() - begun < 10
        timer.join()
        begun = time.monotonic()
        assert waits.wait(0.2)
        assert time.monotonic() - begun >= 0.2  # nothing was written

        waits._listening.connection.driver_connection.close()  # type: ignore[attr-defined]
        with pytest.raises(UnreachableError):
            waits.wait(0.1)
        assert eventually(lambda: waits.wait(0.0))
        writes.close()
        waits.close()


def test_sqlite_and_memory_tell_nobody(tmp_path: object) -> None:
    database = open_views(f"sqlite:///{tmp_path}/views.db")
    assert not database.wait(5.0)
    database.close()
