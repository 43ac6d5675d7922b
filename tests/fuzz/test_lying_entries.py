"""Entries that lie, before every reader of the run log: each gives up that run alone, and goes on with the others."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from typer.testing import CliRunner

from refold import App, Context
from refold.cli import output
from refold.cli.main import app as refold
from refold.client.operations.runs import Runs
from refold.client.reading.approval import ApprovalIndex
from refold.client.reading.run import events_of, info_of
from refold.client.verify import verify_log
from refold.console.gateway import writing
from refold.console.insights.figures import Insights
from refold.console.insights.service import Counting, figures_store
from refold.console.projections.following import LoggedRuns
from refold.console.projections.service import KeptProjection, shipped
from refold.console.telemetry.service import Telemetry
from refold.console.telemetry.spans import Style
from refold.core.ids import home
from refold.core.topics import RUN_LOG
from refold.engine.ports.log import Outgoing
from refold.engine.runtime.clock import clock_ms
from tests.archive.world import DAY
from tests.archive.world import World as Archived
from tests.contract.table_benches import PostgresBench, SqliteBench, running_postgres
from tests.fuzz.lying import GOOD, NOW, records
from tests.gateway.test_reading import served
from tests.golden import seen
from tests.lent import lend
from tests.projections.memory_views import MemoryViewDatabase
from tests.projections.source import ListedLog
from tests.projections.test_service import settle
from tests.recovery.rig import Rig
from tests.roots import TRUST

STYLE = Style(gen_ai=True, content=str)
SEEDS = range(int(os.environ.get("LYING_SEEDS", "1")))
app = App("honest")


@app.tool(effect="pure")
def look(n: int) -> int:
    return n


@app.agent
async def one(ctx: Context, n: int) -> int:
    await asyncio.sleep(3_600)
    return int(await ctx.call(look, n))


def listed(seed: int) -> ListedLog:
    log = ListedLog()
    for key, value in records(seed):
        run = key.partition(b"/")[0].decode()
        log.append(RUN_LOG, home(run, log.number), key, value)
    return log


@pytest.mark.parametrize("seed", SEEDS)
def test_no_planner_ends_by_it(seed: int) -> None:
    rig = Rig(app)
    rig.start("mine", "one", n=1)
    rig.run()
    for key, value in records(seed):
        rig.broker.write(Outgoing(RUN_LOG, 0, key, value, (), 0))
        if seed % 2:
            rig.run()
    rig.run()
    rig.deploy(app)
    rig.start("later", "one", n=2)
    rig.run()
    rig.later(3_700_000)
    rig.finish()
    rig.run()
    rig.deploy(app)

    assert rig.state("mine").status == "completed"
    assert rig.state("later").status == "completed"


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    bench = SqliteBench(tmp_path) if request.param == "sqlite" else PostgresBench(lend(request, running_postgres))
    yield bench.views
    bench.views.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_no_projector_and_no_exporter_of_spans_ends_by_it(seed: int, database: Any) -> None:
    log, spans = listed(seed), list[Any]()
    kept = KeptProjection(shipped()[0], database, log)
    settle(kept)
    telemetry = Telemetry(
        database, lambda some: spans.extend(encode_spans(some).resource_spans), Style(gen_ai=True), from_start=True
    )
    while telemetry.turn():
        pass

    assert not kept.stopped
    assert spans


@pytest.mark.parametrize("seed", SEEDS)
def test_no_insights_end_by_it(seed: int) -> None:
    log, sent = listed(seed), dict[str, Any]()
    insights = Insights(lambda usage, at_ms: 7, "seven")
    store = figures_store(MemoryViewDatabase(), insights, "log-1")
    read = lambda partition, at: [each for each in log.scan(RUN_LOG, partition) if each.offset >= at]  # noqa: E731
    counting = Counting(insights, store, LoggedRuns(log), read, sent.update)
    counting.begin(NOW, log.identity(), {(RUN_LOG, number): (0, log.ends[RUN_LOG, number]) for number in range(2)})

    assert counting.position == {number: log.ends[RUN_LOG, number] for number in range(2)}
    assert sent


@pytest.mark.parametrize("seed", SEEDS)
def test_no_archivist_and_no_command_of_the_client_ends_by_it(seed: int, tmp_path: Path) -> None:
    world = Archived(tmp_path / "archive")
    world.run("first")
    for key, value in records(seed):
        run = key.partition(b"/")[0].decode()
        world.broker.write(Outgoing(RUN_LOG, home(run, 4), key, value, (), 0))
    reader = world.chronicle.reader
    index = ApprovalIndex(4, TRUST, clock_ms)
    for found in world.records():
        index.feed(found)
    runs = Runs(reader)
    every = list(runs.all())
    for found_run in every:
        output.plain(info_of(found_run))
        list(map(output.plain, events_of(found_run)))
    findings = verify_log(reader, TRUST, now_ms=0, settle_s=0)
    assert runs.get("first").status == runs.get(GOOD).status == "completed"
    world.broker.now += 31 * DAY
    swept = world.archivist().sweep()

    assert findings.runs
    assert "first" in swept.archived


OF_RUN = (
    "/api/runs/{}",
    "/runs/{}",
    "/api/runs/{}/events",
    "/api/runs/{}/bundle",
    "/api/runs/{}/why/1",
    "/runs/{}/fork",
)
OF_ALL = (
    *("/", "/inbox", "/sessions", "/tools", "/operators", "/limits", "/health", "/versions", "/api/runs?limit=200"),
    *("/api/daily", "/api/sessions", "/api/approvals", "/api/doubts", "/api/operator-actions"),
    *("/api/operator-actions.jsonl", "/api/projections", "/api/versions", "/metrics"),
)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_page_of_the_gateway_fails_by_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing.Refusals, "_listen", lambda refusals: refusals.listens.set())
    with served() as site:
        for key, value in records(seed):
            run = key.partition(b"/")[0].decode()
            site.log.append(RUN_LOG, home(run, site.log.number), key, value)
        site.catch_up()
        runs = {run for key, _ in records(seed) if (run := key.partition(b"/")[0].decode()).startswith("lie-")}
        paths = [*OF_ALL, *(of.format(run) for run in sorted(runs) for of in OF_RUN)]
        found = {path: site.http.get(path).status_code for path in paths}

        assert {path: code for path, code in found.items() if code >= 500 and code != 503} == {}
        assert site.get(f"/api/runs/{GOOD}")["status"] == "completed"


OF_RUN_SAID = (("run", "show"), ("run", "events"), ("run", "events", "--audit"), ("run", "show", "--json"))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_command_fails_by_it(seed: int) -> None:
    with seen.played(writes=True) as hand:
        platform = hand.platform
        for key, value in records(seed):
            run = key.partition(b"/")[0].decode()
            platform.broker.write(Outgoing(RUN_LOG, home(run, platform.broker.partitions), key, value, (), 0))
        every = [("run", "list", "--limit", "500"), ("verify", "--settle", "0"), ("approval", "list")]
        every += [("run", "list", "--limit", "500", "--json"), ("run", "list", "--at", "2023-11-14T22:13:21Z")]
        every += [(*words, f"lie-{number}") for number in range(12) for words in OF_RUN_SAID]
        for words in every:
            result = CliRunner().invoke(refold, words)
            assert isinstance(result.exception, SystemExit | None), words
        assert "completed" in CliRunner().invoke(refold, ["run", "show", GOOD]).stdout
