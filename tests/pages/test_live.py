"""A page that stays open: what a model says meanwhile, and the gateway and the projector killed under it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from refold.console.gateway.app import build_api
from tests.cli.terminal import Dev, served
from tests.gateway.test_reading import Bench
from tests.pages.browser import chromium, site_of
from tests.pages.test_browser import checked, driven, page, ready
from tests.waiting import eventually

__all__ = ["driven", "page"]
pytestmark = pytest.mark.pages
ROOT = Path(__file__).parents[2]

if not chromium():
    pytest.skip("no Chromium on the PATH", allow_module_level=True)


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    data = tmp_path_factory.mktemp("live")
    with served(ROOT / "tests/contrib/streaming.py", data, LOGNAME="ada", PLACE=str(data)) as running:
        eventually(lambda: ready(running), within=60, what="the gateway")
        yield running


def talks(dev: Dev, page: Page, run: str) -> None:
    (dev.data / "hang").touch()
    dev.refold("run", "start", "talker", "--id", run, "--input", '{"prompt":"hello"}')
    eventually(lambda: page.request.get(f"/api/runs/{run}").ok, within=60, what="the run")
    page.goto(f"/runs/{run}?seq=3")
    expect(page.locator(".row[data-call]")).to_be_visible(timeout=30_000)


def test_what_a_model_says_is_seen_and_what_is_superseded_goes(dev: Dev, page: Page) -> None:
    talks(dev, page, "talk-1")
    # A page that is opened late has missed what was said before: the next try says it all again.
    dev.kill("executor")
    expect(page.locator(".row em.says")).to_contain_text("one two", timeout=60_000)
    expect(page.locator("pre.saying")).to_have_text("one two ")
    checked(page, "tokens")
    dev.kill("executor")
    expect(page.locator("pre.saying del")).to_have_text("one two ", timeout=60_000)
    expect(page.locator("pre.saying del")).to_have_count(0, timeout=10_000)
    expect(page.locator("pre.saying")).to_have_text("one two ")
    (dev.data / "hang").unlink()
    expect(page.locator("#head .pill")).to_have_text("completed", timeout=60_000)
    expect(page.locator("[data-call].row")).to_have_count(0)


def test_what_the_model_of_a_run_below_says_is_seen_where_its_steps_are_shown(dev: Dev, page: Page) -> None:
    (dev.data / "hang").touch()
    dev.refold("run", "start", "host", "--id", "host-1", "--input", '{"prompt":"hello"}')
    eventually(lambda: page.request.get("/api/runs/host-1").ok, within=60, what="the run")
    page.goto("/runs/host-1")
    page.click(".kid >> text=show steps")
    expect(page.locator(".deep .row[data-call]")).to_be_visible(timeout=30_000)
    dev.kill("executor")
    expect(page.locator(".deep .row em.says")).to_contain_text("one two", timeout=60_000)
    (dev.data / "hang").unlink()
    expect(page.locator("#head .pill")).to_have_text("completed", timeout=60_000)


def test_a_time_is_shown_in_the_zone_of_its_reader_and_in_utc(dev: Dev, driven: Browser) -> None:
    dev.refold("run", "start", "talker", "--id", "t-zone", "--input", '{"prompt":"hello"}')
    page = driven.new_page(base_url=dev.state["gateway"], timezone_id="Asia/Tokyo", locale="en-GB")
    try:
        eventually(lambda: page.request.get("/api/runs/t-zone").ok, within=60, what="the run")
        page.goto("/runs/t-zone")
        time = page.locator("time[datetime]").first
        sent = time.get_attribute("title")
        time.hover()
        assert sent is not None
        assert "GMT+9" not in sent
        expect(time).to_have_attribute("title", re.compile(r"GMT\+9, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$"))
    finally:
        page.close()


def test_a_page_comes_back_as_it_was_left(dev: Dev, page: Page) -> None:
    talks(dev, page, "talk-2")
    page.set_viewport_size({"width": 1360, "height": 500})
    page.click("#record-3 summary")
    page.click("#cause-3 summary")
    page.focus("#s3")
    page.evaluate("scrollTo(0, 300)")
    before = page.evaluate("scrollY")
    assert before > 100
    dev.kill("gateway")
    expect(page.locator("#live")).to_contain_text("this may be old", timeout=10_000)
    eventually(lambda: ready(dev), within=60, what="the gateway")
    expect(page.locator("#live")).to_have_text("live", timeout=30_000)
    (dev.data / "hang").unlink()
    expect(page.locator("#head .pill")).to_have_text("completed", timeout=60_000)

    assert page.evaluate("document.activeElement.id") == "s3"
    assert abs(page.evaluate("scrollY") - before) < 5
    assert page.locator("#record-3").get_attribute("open") is not None
    assert page.locator("#cause-3").get_attribute("open") is None
    page.click("#shows a >> nth=1")
    expect(page.locator("#s1")).to_be_visible()
    numbers = [int(each) for each in page.locator("#rows a.row .seq").all_text_contents()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert "seq=3" in page.url  # the link was followed in place, with what was open


def test_the_page_of_an_erased_run_empties_itself(driven: Browser) -> None:
    bench = Bench()
    with site_of(build_api(bench.gateway)) as base:
        page = driven.new_context(base_url=base).new_page()
        page.goto("/runs/run-3?seq=3")
        expect(page.locator("#event-3")).to_be_visible()
        bench.log.mark("run-3")
        bench.log.bury("run-3")
        bench.catch_up()
        expect(page.locator("main")).to_contain_text("was erased", timeout=20_000)
        expect(page.locator("#rows")).to_have_count(0)
        page.context.close()
