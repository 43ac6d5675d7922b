"""Postgres and SQLite tell of changes to whoever waits for them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


WRITER = """
import sys
from refold.console.projections.shipped.projection import Shipped
from refold.console.sql.opening import open_views
from refold.engine.ports.tables import ViewChanges
views = open_views(sys.argv[1])
views.create("telling", 1, Shipped().tables, {"log": "x"})
store, locked = views.store("telling", 1), views.lock("telling")
print("ready", locked, flush=True)
for line in sys.stdin:
    store.commit(ViewChanges((), notes={"line": line}))
    print("committed", flush=True)
"""


def test_every_process_notices_commits_in_sqlite_and_waits_without_work(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/views.db"
    first = open_views(url)
    command = [sys.executable, "-c", WRITER, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready True\n"
        second, own = open_views(url), open_views(url)
        waiting = (first, second)
        assert all(each.wait(0.0) for each in waiting)  # from here on

        for _ in range(3):
            begun = time.monotonic()
            print("go", file=writer.stdin, flush=True)
            assert writer.stdout.readline() == "committed\n"
            assert all(each.wait(60.0) for each in waiting)
            assert time.monotonic() - begun < 30
        begun, worked = time.monotonic(), time.thread_time()
        assert first.wait(0.5)
        assert time.monotonic() - begun >= 0.5  # nothing was written
        assert time.thread_time() - worked < 0.1

        assert own.lock("another")
        own.create("another", 1, (), {})
        timer = threading.Timer(0.2, own.store("another", 1).commit, [ViewChanges((), notes={"a": "b"})])
        timer.start()
        begun = time.monotonic()
        assert second.wait(60.0)  # of this process too
        assert time.monotonic() - begun < 30
        timer.join()
        writer.kill()
    for each in (*waiting, own):
        each.close()


@pytest.mark.parametrize("missing", ["function", "instances", "watches"])
def test_without_notifications_of_the_system_a_reader_of_sqlite_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    system: Any = {
        "function": SimpleNamespace(),
        "instances": SimpleNamespace(inotify_init1=lambda _: -1),
        "watches": SimpleNamespace(
            inotify_init1=lambda _: os.open(os.devnull, os.O_RDONLY), inotify_add_watch=lambda *_: -1
        ),
    }[missing]
    database = open_views(f"sqlite:///{tmp_path}/views.db")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: system)

    assert not database.wait(60.0)
    database.close()
