"""Time and bytes of the page of a run in Chromium: `python -m benchmarks.pages`. Prints JSON; 1 if a must is missed.

The views are in memory, the gateway is in this process, and Kafka is away. Every page is loaded by a new context, so
that nothing is cached.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator

from benchmarks.prefill import records
from playwright.sync_api import Browser, Page
from tests.gateway.test_reading import Bench
from tests.pages.browser import browser, site_of

from refold.core.events import CallCompleted, CallDispatched, CallProposed, Event, RetryPolicy, RunRequested, RunStarted
from refold.core.ids import RunId
from refold.gateway.app import build_api
from refold.projections import service

AT_MS = 1_790_000_000_000
MUST = {"first_paint_ms": 1_000, "main_thread_ms": 500, "slider_p95_ms": 200, "kib_of_100_steps": 100}
KEYS = """() => { window.took = []; document.getElementById("at").addEventListener("input", event =>
    requestAnimationFrame(() => setTimeout(() => window.took.push(performance.now() - event.timeStamp)))); }"""


def history(run: str, steps: int) -> Iterator[tuple[bytes, bytes]]:
    """A run of calls with an effect, which no count stands for, of three events each."""

    def call(step: int) -> list[Event]:
        args, retry = f'{{"path":"file-{step}.toml"}}', RetryPolicy()
        made = CallProposed(step, "edit_file", args, f"k{step}", "default", "keyed", 1_000, retry)
        return [made, CallDispatched(step, 1, AT_MS)]

    done = [[CallCompleted(step, 1, f'"edited {step}"'), *call(step + 1)] for step in range(1, steps)]
    begun: list[Event] = [RunRequested("shop", "{}", "d", "s", "ann"), RunStarted("1", "app")]
    return records(RunId(run), AT_MS, [[*begun, *call(1)], *done])


def cold(chromium: Browser, url: str) -> tuple[float, float, int, Page]:
    """Load a page that is not cached: its first contentful paint and main-thread time in ms, and its bytes as sent."""
    page = chromium.new_context(viewport={"width": 1360, "height": 900}).new_page()
    told = page.context.new_cdp_session(page)
    sizes: list[int] = []
    told.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    for each in ("Network", "Performance"):
        told.send(f"{each}.enable")
    page.goto(url, wait_until="load")
    paint = page.wait_for_function("performance.getEntriesByName('first-contentful-paint')[0]?.startTime").json_value()
    busy = {each["name"]: each["value"] for each in told.send("Performance.getMetrics")["metrics"]}
    return paint, 1_000 * busy["TaskDuration"], sum(sizes), page


def main(rounds: int = 5) -> int:
    """Measure, the median of some rounds."""
    service.REFRESH_S = 0.0
    bench = Bench()
    for run, steps in (("long", 1_666), ("hundred", 100)):
        for key, value in history(run, steps):
            bench.log.write(key, value)
    bench.catch_up()
    with site_of(build_api(bench.gateway)) as base, browser() as chromium:
        long = [cold(chromium, f"{base}/runs/long") for _ in range(rounds)]
        small = cold(chromium, f"{base}/runs/hundred")
        page = long[-1][3]
        page.evaluate(KEYS)
        page.focus("#at")
        for _ in range(60):
            page.keyboard.press("ArrowLeft")
            page.wait_for_timeout(60)
        took = sorted(page.evaluate("window.took"))
    found = {
        "first_paint_ms": round(statistics.median(each[0] for each in long)),
        "main_thread_ms": round(statistics.median(each[1] for each in long)),
        "slider_p95_ms": round(took[int(len(took) * 0.95)]),
        "kib_of_100_steps": round(small[2] / 1024, 1),
        "kib_of_5000_events": round(long[0][2] / 1024, 1),
    }
    print(json.dumps(found))
    return int(any(found[name] > most for name, most in MUST.items()))


if __name__ == "__main__":
    sys.exit(main())
