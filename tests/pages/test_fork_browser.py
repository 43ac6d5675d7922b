"""Forks in a browser: the incident of the guide on a real platform, and reports out of a view in memory."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from refold.console.gateway.app import build_api
from refold.console.gateway.forks import ForkRoom
from tests.cli.terminal import Dev
from tests.gateway.test_reading import Bench
from tests.pages.browser import site_of
from tests.pages.hostile import CORPUS
from tests.pages.test_browser import checked, dev, driven, page, start
from tests.pages.test_forks import ROOT, TARGET, recorded, write
from tests.waiting import eventually

__all__ = ["dev", "driven", "page"]
pytestmark = pytest.mark.pages


def test_the_incident_is_forked_from_its_page(dev: Dev, driven: Browser, page: Page) -> None:
    start(dev, "fork-1")
    eventually(lambda: httpx.get(f"{dev.state['gateway']}/api/runs/fork-1.3").is_success, within=60, what="the run")
    page.goto("/runs/fork-1.3")
    expect(page.locator("section[id^=ask-]")).to_be_visible(timeout=60_000)
    settings = dev.data / "shop/settings.toml"
    was, written = settings.read_text(), events_of(dev)
    row = page.locator("#rows li", has=page.locator("[id=s19]"))
    expect(row.locator("a.fork")).to_have_css("opacity", "0")
    row.hover()
    row.locator("a.fork").click()
    expect(page.locator("h1")).to_have_text("Fork of fork-1.3 from event 19")
    checked(page, "fork")
    page.select_option("select[name='decide:fork-1.3/19']", "approve")
    page.click("button:text-is('Fork')")
    expect(page.locator("#verdict .pill")).to_have_text("stopped", timeout=60_000)
    expect(page.locator(".call")).to_contain_text("It would have fired edit_file")
    expect(page.locator(".diff .add mark")).to_have_text("50")
    expect(page.locator(".both .stop td").nth(2)).to_contain_text("fork approved")
    checked(page, "fork-stopped")
    page.fill("textarea[name=args]", "{")
    page.click("button:text-is('Fork')")
    expect(page.locator("#refused")).to_contain_text("Nothing was forked")
    expect(page.locator("select[name='decide:fork-1.3/19']")).to_have_value("approve")
    checked(page, "fork-refused")
    assert settings.read_text() == was
    assert events_of(dev) == written

    context = driven.new_context(
        base_url=dev.state["gateway"], java_script_enabled=False, viewport={"width": 320, "height": 700}
    )
    plain = context.new_page()
    plain.goto("/runs/fork-1.3?show=events")
    plain.locator("a[aria-label='Fork from event 19']").click()
    plain.select_option("select[name='decide:fork-1.3/19']", "approve")
    plain.click("button:text-is('Fork')")
    assert "It would have fired" in plain.inner_text("main")
    assert plain.evaluate("document.documentElement.scrollWidth") <= 320
    context.close()


def events_of(dev: Dev) -> int:
    return len(httpx.get(f"{dev.state['gateway']}/api/runs/fork-1.3/events").json())


@pytest.fixture(scope="module")
def bench(driven: Browser) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_ENVIRONMENT", "test")
        patch.chdir(ROOT)
        bench = Bench()
        bench.gateway.forks = ForkRoom(TARGET)
        write(bench, recorded())
        yield bench


def test_every_report_is_for_everybody(bench: Bench, page: Page) -> None:
    with site_of(build_api(bench.gateway)) as url:
        reports(page, url)
        bench.gateway.forks.app = ""
        page.goto(f"{url}/runs/plain/fork?at=4")
        expect(page.locator("#command pre")).to_have_text("refold fork plain --at 4 --app MODULE:APP")
        checked(page, "fork-command")


def reports(page: Page, url: str) -> None:
    def forked(run: str, **fields: str) -> None:
        page.goto(f"{url}/runs/{run}/fork")
        for name, text in fields.items():
            page.fill(f"[name={name}]", text)
        page.click("button:text-is('Fork')")
        expect(page.locator("#verdict")).to_be_visible(timeout=60_000)

    milk = "- name: no more milk\n  when: args.item == 'milk'\n  deny: not today\n"
    denies = f"rules:\n{milk}- name: rest\n  when: 'true'\n  allow: true\n"
    forked("plain", input='{"items": ["tea", "milk", "silk"]}', stubs="buy: {n: 9}", draft=denies)
    checked(page, "fork-other")
    forked("foul-0", input='{"items": ["<script>window.ran=1</script>!"]}', model=CORPUS[1])
    checked(page, "hostile-fork")
    assert page.evaluate("window.ran") is None
