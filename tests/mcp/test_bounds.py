"""What a server may take of its executor, whatever it sends, and that it never outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from refold import App
from refold.contrib.mcp import link, transports
from refold.core.wire import canonical
from tests.embedded.processes import lives
from tests.mcp.scripts import Scripted, Workbench, described
from tests.tidy.repository import ROOT
from tests.waiting import eventually


@pytest.fixture
def files(tmp_path: Path) -> Scripted:
    return Scripted(tmp_path / "files")


@contextmanager
def benched(files: Scripted, **options: Any) -> Iterator[Workbench]:
    app = App("mcp")
    app.include(files.server(**{"timeout": timedelta(seconds=20), **options}))
    bench = Workbench(app)
    yield bench
    bench.box.close()


def test_a_message_that_is_too_large_ends_the_connection_and_nothing_else(files: Scripted) -> None:
    with benched(files, most_bytes=1 << 20) as bench:
        digest = bench.digest("read_file")
        files.does("huge")

        ended = bench.run("files.read_file", arguments={}, manifest=digest)
        assert (ended.status, ended.code) == ("unknown", "unanswered")

        files.does("")
        assert bench.run("files.read_file", arguments={}, manifest=digest).status == "completed"
        assert bench.box.alive


def test_a_result_that_is_too_large_for_the_log_is_none(files: Scripted) -> None:
    with benched(files) as bench:
        digest = bench.digest("read_file")
        files.does("huge")

        ended = bench.run("files.read_file", arguments={}, manifest=digest)

    assert (ended.status, ended.code) == ("broken", "too_large")


@pytest.mark.parametrize("how", ["flood", "nag"])
def test_a_server_that_asks_and_does_not_listen_is_left(files: Scripted, how: str) -> None:
    with benched(files, timeout=timedelta(minutes=10)) as bench:
        bench.listed()
        files.is_(how)

        ended = bench.run("mcp.files.tools")

    assert (ended.status, ended.code) == ("failed", "not_done")
    eventually(lambda: not any(map(lives, files.pids)))


def test_a_server_that_never_answers_is_given_up(files: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "AGREE_S", 0.5)
    files.is_("deaf")

    with benched(files) as bench:
        ended = bench.run("mcp.files.tools")

    assert (ended.status, ended.code, ended.retryable) == ("failed", "not_done", True)
    eventually(lambda: not any(map(lives, files.pids)))


def test_a_list_that_does_not_come_is_waited_for_half_the_time_of_a_call(files: Scripted) -> None:
    with benched(files, timeout=timedelta(seconds=4)) as bench:
        digest = bench.digest("read_file")
        files.does("hang-list")

        ended = bench.run("files.read_file", arguments={}, manifest=digest)

        assert (ended.status, ended.code) == ("failed", "not_done")
        assert "TimeoutError" in ended.message


@pytest.mark.parametrize("how", ["many", "long", "endless"])
def test_a_list_has_an_end(files: Scripted, how: str) -> None:
    if how == "many":
        files.has(*(described(f"t{number}") for number in range(link.MOST_TOOLS + 1)))
    elif how == "long":
        files.has(*(described(f"t{number}", "x" * 1_000_000) for number in range(5)))
    else:
        files.has()
        files.is_("endless")

    with benched(files) as bench:
        ended = bench.run("mcp.files.tools")

    assert (ended.status, ended.code, ended.retryable) == ("failed", "too_large", False)


def test_what_a_server_tells_models_is_cut(files: Scripted) -> None:
    files.is_("wordy")

    with benched(files) as bench:
        assert bench.listed()["instructions"] == "x" * link.MOST_WORDS


def test_no_schema_of_a_server_is_run(files: Scripted) -> None:
    """This one would be for ages, on the loop of all tools; others name files and addresses."""
    trap = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    remote = {"type": "object", "$ref": "http://127.0.0.1:1/schema"}
    files.has({**described("read_file"), "outputSchema": trap, "inputSchema": remote})

    with benched(files) as bench:
        digest = bench.digest("read_file")
        files.does("trap")
        ended = bench.run("files.read_file", arguments={"b": 1}, manifest=digest)

    assert canonical.parse(ended.result)["structured"] == {"a": "a" * 60 + "!"}


def test_names_that_somebody_makes_up_are_not_kept(files: Scripted) -> None:
    server = files.server()

    for number in range(5_000):
        server.tool(f"files.t{number}")

    assert server._tool.cache_info().currsize == 4_096


def test_a_server_ends_with_its_toolbox_and_what_it_has_started_too(
    files: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "GRACE_S", 0.1)
    files.is_("stubborn")
    with benched(files) as bench:
        digest = bench.digest("read_file")
        files.does("die")
        bench.run("files.read_file", arguments={}, manifest=digest)
        eventually(lambda: not any(map(lives, files.pids[:2])))
        files.does("")
        bench.listed()
        left = files.pids[2:]

    assert len(left) == 2
    eventually(lambda: not lives(left[0]))
    for pid in left[1:]:  # what it has started is its own affair, when it is killed
        os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a server has to notice the end of its input")
def test_a_server_does_not_outlive_an_executor_that_is_killed(files: Scripted) -> None:
    files.is_("stubborn")
    script = f"""
        import sys, threading
        from pathlib import Path
        from refold import App
        from tests.mcp.scripts import Scripted, Workbench
        app = App("mcp")
        app.include(Scripted(Path({str(files.place)!r})).server())
        Workbench(app).listed()
        print("ready", flush=True)
        threading.Event().wait()
    """
    executor = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert executor.stdout is not None
    assert executor.stdout.readline() == "ready\n"
    server, child = files.pids

    executor.kill()
    executor.wait()

    eventually(lambda: not lives(server))
    os.kill(child, signal.SIGKILL)
