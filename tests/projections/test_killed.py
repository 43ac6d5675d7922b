"""Projector, gateway and Postgres are killed while a real log grows: views equal the log, streams have no gaps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from refold.dev.kafka import EmbeddedKafka
from refold.dev.ports import free_port
from tests.contract.table_benches import Bench, PostgresBench, SqliteBench, postgres_server
from tests.projections.killing import (
    EVENTS,
    Listening,
    Load,
    Projecting,
    caught_up,
    differs,
    miscounted,
    platform,
    projecting,
    store_of,
    strike,
)
from tests.waiting import eventually

MOST_RSS_MIB = 120
"""Memory of a projector at rest."""


def check(bootstrap: str, bench: Bench, folder: Path, trouble: Callable[[Any, Load], None]) -> None:
    """Lets trouble come while a log grows, and compares the view with it when all of it is read."""
    settings = platform(bootstrap, f"killed-{os.urandom(3).hex()}")
    with Load(settings) as load:
        trouble(settings, load)
    with projecting(settings, bench.url, folder) as running:
        running.await_start()
        eventually(lambda: caught_up(settings, bench), every=0.5)
        rss_mib = running.rss_mib
        assert running.end() == 0

    assert differs(settings, bench, folder) == []
    assert miscounted(store_of(bench), load.runs) == []
    assert rss_mib < MOST_RSS_MIB
    bench.views.close()


def on_sqlite(kafka: EmbeddedKafka, folder: Path, kills: int) -> None:
    bench = SqliteBench(folder)
    rng = Random(kills)
    check(kafka.bootstrap, bench, folder, lambda settings, _: strike(settings, bench, folder, kills, rng))


def on_postgres(kafka: EmbeddedKafka, folder: Path, kills: int) -> None:
    """Kill one of the three, again and again, while clients listen to the gateway."""
    rng, port = Random(kills), free_port()
    with postgres_server() as server:
        bench = PostgresBench(server.get_uri())

        def trouble(settings: Any, load: Load) -> None:
            words = {"projections": ("projections",), "gateway": ("gateway", "--port", str(port))}
            running = {name: Projecting(settings, bench.url, folder, *words[name]) for name in words}
            try:
                with Listening(load, port) as listening:
                    eventually(lambda: any(listening.seen.values()))
                    for number in range(kills):
                        victim = (*words, "postgres")[number % 3]
                        for each in running.values():
                            each.await_start()
                        time.sleep(rng.random() * 1.5)
                        if victim == "postgres":
                            fell(server)
                            assert [each.process.poll() for each in running.values()] == [None, None], (
                                "they wait for it"
                            )
                            continue
                        running[victim].kill()
                        running[victim] = Projecting(settings, bench.url, folder, *words[victim])
                    load.stop()
                assert listening.resumed >= kills // 3
                assert {run: ids for run, ids in listening.seen.items() if ids != list(range(1, EVENTS + 1))} == {}
            finally:
                for each in running.values():
                    each.kill()

        check(kafka.bootstrap, bench, folder, trouble)


def fell(server: Any) -> None:
    """Kills all processes of a Postgres, and starts it again."""
    postmaster = psutil.Process(server.get_pid())
    processes = [postmaster, *postmaster.children(recursive=True)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # a backend may end by itself, and all do once the postmaster is gone
            process.kill()
    psutil.wait_procs(processes, timeout=10)
    server.ensure_postgres_running()


def test_a_projector_that_is_killed_again_and_again_leaves_a_view_in_sqlite_equal_to_the_log(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    on_sqlite(kafka, tmp_path, 8)


@pytest.mark.long
def test_projector_gateway_and_postgres_that_are_killed_leave_a_view_equal_to_the_log_and_streams_without_gaps(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    on_postgres(kafka, tmp_path, 6)


@pytest.mark.campaign
@pytest.mark.timeout(3_600)
def test_a_campaign_of_kills_leaves_every_view_equal_to_its_log(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    for name in ("sqlite", "postgres"):
        (tmp_path / name).mkdir()

    on_sqlite(kafka, tmp_path / "sqlite", 30)
    on_postgres(kafka, tmp_path / "postgres", 60)
