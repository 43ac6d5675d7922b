"""Ways out of what is stuck, by the forms of a run's page without JavaScript."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.cli.terminal import Dev, served
from tests.pages.browser import chromium
from tests.pages.test_browser import checked, driven, page, ready
from tests.waiting import eventually

__all__ = ["driven", "page"]
pytestmark = pytest.mark.pages

if not chromium():
    pytest.skip("no Chromium on the PATH", allow_module_level=True)


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    data = tmp_path_factory.mktemp("stuck")
    with served(Path(__file__).with_name("stuck.py"), data, LOGNAME="ada") as running:
        eventually(lambda: ready(running), within=60, what="the gateway")
        yield running


def comes_to(dev: Dev, page: Page, agent: str, given: str, status: str) -> None:
    dev.refold("run", "start", agent, "--id", agent, "--input", given)
    url = f"/api/runs/{agent}"
    eventually(lambda: (of := page.request.get(url)).ok and of.json()["status"] == status, within=60, what=status)


def test_a_call_on_hold_has_three_ways_out(dev: Dev, page: Page, driven: Browser) -> None:
    dev.refold("run", "start", "caller", "--id", "caller", "--input", '{"number":"112"}')
    eventually(lambda: page.request.get("/api/runs/caller").ok, within=60, what="the run")
    eventually(lambda: page.request.get("/api/runs/caller").json()["held"], within=60, what="the hold")
    page.goto("/runs/caller")
    held = page.locator("section[id^=held-]")
    expect(held).to_contain_text("nobody answers at 112")
    checked(page, "held")
    page.click("button:text-is('Try it again')")
    eventually(lambda: "2 tries failed" in again(page), within=60, what="a second try")
    page.fill("textarea[name=result]", "not JSON")
    page.click("button:text-is('Answer with this result')")
    assert "JSON" in page.inner_text("main")
    checked(page, "settle-refused")
    page.goto("/runs/caller")
    page.fill("textarea[name=result]", '"she called back"')
    page.click("button:text-is('Answer with this result')")
    assert "only people whom the policy names under `doubt` may say a result" in page.inner_text("main")
    page.goto("/runs/caller")
    page.click("button:text-is('Let it fail')")
    expect(page.locator("#head .pill")).to_have_text("failed", timeout=60_000)


def again(page: Page) -> str:
    page.reload()
    return page.inner_text("main")


def test_a_failed_run_is_retried_from_here_with_other_arguments(dev: Dev, driven: Browser, page: Page) -> None:
    comes_to(dev, page, "payer", '{"amount":50}', "failed")
    context = driven.new_context(base_url=dev.state["gateway"], java_script_enabled=False)
    plain = context.new_page()
    plain.goto("/runs/payer?open=all")
    plain.click("a.row:has-text('note')")
    plain.click("summary:text-is('Retry from here…')")
    expect(plain.locator(".panel")).to_contain_text("step 1 note (once)")
    plain.click("button:text-is('Retry from step 1')")
    expect(plain.locator("main")).to_contain_text("may have had their effect")  # and nothing was sent
    plain.goto("/runs/payer?open=all")
    plain.click("a.row:has-text('pay')")
    plain.click("summary:text-is('Retry from here…')")
    plain.locator("textarea[name=args]").fill('{"amount": 3}')
    page.goto("/runs/payer?open=all")
    page.click("a.row:has-text('note')")
    page.click("summary:text-is('Retry from here…')")
    page.click("button:text-is('Retry from step 1')")
    expect(page.locator("main")).to_contain_text("may have had their effect")
    checked(page, "run-refused")
    page.goto("/runs/payer?seq=3")
    page.click("summary:text-is('Retry from here…')")
    checked(page, "retry")
    plain.click("button:text-is('Retry from step 2')")
    eventually(lambda: "paid 3" in again(plain), within=60, what="the payment")
    context.close()
