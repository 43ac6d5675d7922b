"""A page over a view that a projector of its own keeps, in Postgres: killed, and stopped, while the page is open."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.cli.terminal import Dev, served
from tests.contract.table_benches import postgres_server
from tests.pages.test_browser import INCIDENT, driven, page, ready, start
from tests.waiting import eventually

__all__ = ["driven", "page"]
pytestmark = pytest.mark.pages


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    data = tmp_path_factory.mktemp("apart")
    with postgres_server() as server:
        more = {"REFOLD_VIEWS__URL": server.get_uri(), "INCIDENT_FOLDER": str(data / "shop")}
        with served(INCIDENT, data, LOGNAME="ada", **more) as running:
            eventually(lambda: ready(running), within=90, what="the gateway")
            yield running


def test_a_killed_projector_is_made_up_for_and_no_event_comes_twice(dev: Dev, page: Page) -> None:
    start(dev, "apart-1")
    eventually(lambda: page.request.get("/api/runs/apart-1").ok, within=60, what="the run")
    page.goto("/runs/apart-1")
    for name in ("projections", "planner", "projections"):
        dev.kill(name)
    expect(page.locator("#rows")).to_contain_text("apart-1.3", timeout=90_000)
    eventually(lambda: page.request.get("/api/runs/apart-1.3").ok, within=90, what="the run below")
    page.goto("/runs/apart-1.3?show=events")
    expect(page.locator("section[id^=ask-]")).to_be_visible(timeout=90_000)
    dev.kill("projections")
    dev.kill("gateway")
    expect(page.locator("#live")).to_contain_text("this may be old", timeout=15_000)
    eventually(lambda: ready(dev), within=60, what="the gateway")
    expect(page.locator("#live")).to_have_text("live", timeout=30_000)
    page.fill("section.call textarea[name=message]", "no")
    page.click("button:text-is('Reject')")
    page.goto("/runs/apart-1.3?show=events")
    expect(page.locator("#rows")).to_contain_text("Approval decided", timeout=90_000)
    numbers = [int(each) for each in page.locator("#rows a.row .seq").all_text_contents()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_projector_that_is_stopped_is_told_in_seconds(dev: Dev, page: Page) -> None:
    start(dev, "apart-2")
    eventually(lambda: page.request.get("/api/runs/apart-2.3").ok, within=90, what="the run below")
    page.goto("/runs/apart-2.3")
    expect(page.locator("section[id^=ask-]")).to_be_visible(timeout=60_000)
    expect(page.locator("#live")).to_have_text("live", timeout=30_000)
    projector = dev.pid("projections")
    os.kill(projector, signal.SIGSTOP)
    try:
        start(dev, "apart-3")  # something that the view does not have
        expect(page.locator("#live")).to_have_text(re.compile(r"live, \d+ s behind"), timeout=60_000)
        expect(page.locator("#behind")).to_contain_text("s behind")
        page.fill("section.call textarea[name=message]", "the digest is the one that was shown")
        page.click("button:text-is('Reject')")
        expect(page.locator("h1")).not_to_contain_text("Nothing was sent")
    finally:
        os.kill(projector, signal.SIGCONT)
    page.goto("/runs/apart-2.3")
    expect(page.locator(".quiet").first).to_contain_text("the digest is the one that was shown", timeout=60_000)
    expect(page.locator("#behind")).to_have_count(0, timeout=30_000)
