"""Time and bytes of the page of a run in Chromium: `python -m benchmarks.pages`. Prints JSON; 1 if a must is missed.

The views are in SQLite, the gateway is in this process, and Kafka is away. Every page is loaded by a new context, so
that nothing is cached. What is called `cpu` is time of a thread or process that computes, which other load does not
change much: of the browser's main thread, and of the gateway for a page that it makes cold, again, and as a part.

`--live` measures on a `refold dev` instead, with 100 other runs in flight: the time from an entry's `at_ms` to the
change on the page of its run.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import httpx
from benchmarks.engine import Client
from benchmarks.prefill import records
from playwright.sync_api import Browser, Page
from tests.cli.terminal import served
from tests.gateway.test_reading import Bench
from tests.pages.browser import browser, site_of
from tests.pages.test_browser import ready
from tests.waiting import eventually

from benchmarks import workload
from refold.console.gateway.app import build_api
from refold.console.gateway.reading import KeptRuns
from refold.console.projections import service
from refold.console.sql.opening import open_views
from refold.core.events import CallCompleted, CallDispatched, CallProposed, Event, RetryPolicy, RunRequested, RunStarted
from refold.core.ids import RunId
from refold.engine.runtime.memory import COLLECT_AFTER
from refold.engine.runtime.settings import KafkaSettings

AT_MS = 1_790_000_000_000
MUST = {"first_paint_ms": 1_000, "main_thread_ms": 500, "slider_p95_ms": 200, "kib_of_100_steps": 100}
KEYS = """() => { window.took = []; document.getElementById("at").addEventListener("input", event =>
    requestAnimationFrame(() => setTimeout(() => window.took.push(performance.now() - event.timeStamp)))); }"""

WATCH = """() => { const run = document.getElementById("run"); window.seen = [];
    const note = () => window.seen.push(
        { at: Date.now(), seq: Number(run.dataset.seq), over: !("follow" in run.dataset) });
    note(); new MutationObserver(note).observe(run, { attributes: true }); }"""
SETTLE = """() => new Promise(done => { const range = document.getElementById("at"), wanted = Number(range.value) - 100;
    const begun = performance.now(); range.value = wanted;
    new MutationObserver((_, seen) => { if (!document.querySelector(`.step a[href*="at=${wanted + 1}"]`)) return;
      seen.disconnect(); requestAnimationFrame(() => setTimeout(() => done(performance.now() - begun))); })
      .observe(document.body, { childList: true, subtree: true });
    for (const each of ["input", "change"]) range.dispatchEvent(new Event(each)); })"""


def history(run: str, steps: int) -> Iterator[tuple[bytes, bytes]]:
    """A run of calls with an effect, which no count stands for, of three events each."""

    def call(step: int) -> list[Event]:
        args, retry = f'{{"path":"file-{step}.toml"}}', RetryPolicy()
        made = CallProposed(step, "edit_file", args, f"k{step}", "default", "keyed", 1_000, retry)
        return [made, CallDispatched(step, 1, AT_MS)]

    done = [[CallCompleted(step, 1, f'"edited {step}"'), *call(step + 1)] for step in range(1, steps)]
    begun: list[Event] = [RunRequested("shop", "{}", "d", "s", "ann"), RunStarted("1", "app")]
    return records(RunId(run), AT_MS, [[*begun, *call(1)], *done])


class Loaded(NamedTuple):
    """A page that was not cached: first contentful paint and main-thread time in ms, bytes as sent, and DOM nodes."""

    page: Page
    paint_ms: float
    busy_ms: float
    size: int
    nodes: int


def cold(chromium: Browser, url: str, clock: str = "timeTicks") -> Loaded:
    """Load a page. `clock` is `timeTicks`, or `threadTicks` for time that its main thread has computed."""
    page = chromium.new_context(viewport={"width": 1360, "height": 900}).new_page()
    told = page.context.new_cdp_session(page)
    sizes: list[int] = []
    told.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    told.send("Network.enable")
    told.send("Performance.enable", {"timeDomain": clock})
    page.goto(url, wait_until="load")
    paint = eventually(lambda: page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime"))
    busy = {each["name"]: each["value"] for each in told.send("Performance.getMetrics")["metrics"]}
    nodes = page.evaluate("document.getElementsByTagName('*').length")
    return Loaded(page, paint, 1_000 * busy["TaskDuration"], sum(sizes), nodes)


def slid(page: Page, keys: int = 60) -> dict[str, int]:
    """Move the slider: times from a key to the rows as they were then, and from the last one to the state loaded."""
    page.evaluate(KEYS)
    page.focus("#at")
    for _ in range(keys):
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(60)
    took = sorted(page.evaluate("window.took"))
    page.wait_for_timeout(1_500)
    settled = []
    for _ in range(9):
        settled.append(page.evaluate(SETTLE))
    return {"slider_p95_ms": round(took[int(len(took) * 0.95)]), "state_loaded_ms": round(statistics.median(settled))}


def computed(base: str, path: str, rounds: int) -> float:
    """The CPU time of this process for a page, in ms, the median of some."""
    took = []
    for _ in range(rounds):
        before = time.process_time()
        httpx.get(base + path, headers={"accept-encoding": "gzip"}).raise_for_status()
        took.append(1_000 * (time.process_time() - before))
    return round(statistics.median(took))


def main(rounds: int = 5) -> int:
    """Measure, the median of some rounds."""
    service.REFRESH_S = 0.0
    with TemporaryDirectory() as folder:
        bench = Bench(views=open_views(f"sqlite:///{folder}/views.db"))
        for run, steps in (("long", 1_666), ("hundred", 100)):
            for key, value in history(run, steps):
                bench.log.write(key, value)
        bench.catch_up()
        gc.collect()
        gc.freeze()  # the log and the projector, which are in no gateway
        gc.set_threshold(COLLECT_AFTER)
        with site_of(build_api(bench.gateway)) as base, browser() as chromium:
            return measured(bench, base, chromium, rounds)


def measured(bench: Bench, base: str, chromium: Browser, rounds: int) -> int:
    """Print the figures; return 1 if a must is missed."""
    again, part = (computed(base, f"/runs/long{query}", 9) for query in ("", "?at=2500&part=true"))
    whole = []
    for _ in range(rounds):
        bench.gateway.reading.kept = KeptRuns()
        whole.append(computed(base, "/runs/long", 1))
    long = []
    for _ in range(rounds):
        bench.gateway.reading.kept = KeptRuns()
        long.append(cold(chromium, f"{base}/runs/long"))
    busy = [cold(chromium, f"{base}/runs/long", "threadTicks").busy_ms for _ in range(rounds)]
    small = cold(chromium, f"{base}/runs/hundred")
    found = {
        "first_paint_ms": round(statistics.median(each.paint_ms for each in long)),
        "main_thread_ms": round(statistics.median(each.busy_ms for each in long)),
        "main_thread_cpu_ms": round(statistics.median(busy)),
        "nodes": long[0].nodes,
        **slid(long[-1].page),
        "gateway_cpu_ms": statistics.median(whole),
        "gateway_again_cpu_ms": again,
        "gateway_part_cpu_ms": part,
        "kib_of_100_steps": round(small.size / 1024, 1),
        "kib_of_5000_events": round(long[0].size / 1024, 1),
    }
    print(json.dumps(found))
    return int(any(found[name] > most for name, most in MUST.items()))


def live(calls: int = 60, others: int = 1_200) -> int:
    """Measure the changes on the page of one run, while others are in flight; return 1 if a must is missed."""
    with TemporaryDirectory() as folder, browser() as chromium:
        (Path(folder) / "effects").touch()
        with served(Path(workload.__file__), Path(folder), BENCHMARK_EFFECTS=f"{folder}/effects") as dev:
            eventually(lambda: ready(dev), within=60, what="the gateway")
            page = chromium.new_context(base_url=dev.state["gateway"]).new_page()
            client = Client(KafkaSettings(bootstrap=dev.state["kafka"]))
            dev.refold("run", "start", "paced", "--id", "seen", "--input", json.dumps({"calls": calls}))
            eventually(lambda: page.request.get("/api/runs/seen").ok, within=60, what="the run")
            page.goto("/runs/seen")
            page.evaluate(WATCH)
            driven = threading.Thread(target=client.drive, args=("ten", others), kwargs={"in_flight": 100})
            driven.start()
            eventually(lambda: page.evaluate("window.seen.at(-1).over"), within=300, what="the end of the run")
            loaded = driven.is_alive()
            driven.join()
            client.close()
            seen = page.evaluate("window.seen")
            events = page.request.get("/api/runs/seen/events?limit=500").json()
    delays = sorted(
        next(each["at"] for each in seen if each["seq"] >= event["seq"]) - event["at_ms"]
        for event in events
        if event["seq"] > seen[0]["seq"]
    )
    found = {
        "events": len(delays),
        "others_all_the_time": loaded,
        "change_p50_ms": round(delays[len(delays) // 2]),
        "change_p99_ms": round(delays[len(delays) * 99 // 100]),
    }
    print(json.dumps(found))
    return int(found["change_p50_ms"] > 300 or found["change_p99_ms"] > 1_000)


if __name__ == "__main__":
    sys.exit(live() if "--live" in sys.argv else main())
