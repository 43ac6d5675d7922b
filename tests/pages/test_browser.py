"""The incident in a browser: watched, rejected, edited and approved, with every process killed on the way."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.cli.terminal import Dev, served
from tests.pages.browser import browser, chromium
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
INCIDENT = ROOT / "examples/incident/app.py"
AXE = Path(__file__).with_name("axe.min.js")
SHOTS = ROOT / ".ci/pages"

if not chromium():
    said = "no Chromium on the PATH: the pages are not tested in a browser; install one, such as `apt install chromium`"
    warnings.warn(said, stacklevel=1)
    pytest.skip(said, allow_module_level=True)


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    data = tmp_path_factory.mktemp("pages")
    with served(INCIDENT, data, LOGNAME="ada", INCIDENT_FOLDER=str(data / "shop")) as running:
        eventually(lambda: ready(running), within=60, what="the gateway")
        yield running


@pytest.fixture(scope="module")
def driven() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture
def page(dev: Dev, driven: Browser) -> Iterator[Page]:
    """A page that fails the test for an error in its script, or for what its policy has forbidden."""
    context = driven.new_context(base_url=dev.state["gateway"], viewport={"width": 1360, "height": 900})
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    yield page
    context.close()
    assert not wrong


def start(dev: Dev, run: str) -> None:
    dev.refold("run", "start", "incident", "--id", run, "--requester", "eve", "--input", '{"service":"shop"}')


def ready(dev: Dev) -> bool:
    try:
        return httpx.get(f"{dev.state['gateway']}/readyz").is_success
    except httpx.TransportError:
        return False


def checked(page: Page, name: str) -> None:
    """Takes pictures of a screen in light, dark and narrow, and has each checked for what shuts people out."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    for look, scheme, width in (("light", "light", 1360), ("dark", "dark", 1360), ("narrow", "light", 320)):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, look)
        page.screenshot(path=SHOTS / f"{name}-{look}.png", full_page=True)
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})")
        flaws = [(flaw["id"], [node["html"][:200] for node in flaw["nodes"][:3]]) for flaw in found["violations"]]
        assert not flaws, (name, look)
    page.set_viewport_size({"width": 1360, "height": 900})


def test_every_screen_is_for_everybody(dev: Dev, page: Page) -> None:
    start(dev, "inc-2")
    page.goto("/")
    expect(page.locator("#runs a.fam").first).to_be_visible(timeout=60_000)
    expect(page.locator("text=waits for people").first).to_be_visible(timeout=30_000)
    for name, path in (
        ("runs", "/"),
        ("runs-none", "/?agent=none"),
        ("inbox", "/inbox"),
        ("health", "/health"),
        ("run", "/runs/inc-2"),
        ("question", "/runs/inc-2.3"),
        ("event", "/runs/inc-2.3?seq=19"),
        ("events", "/runs/inc-2.3?show=events"),
        ("conversation", "/runs/inc-2.3?show=conversation"),
        ("panels", "/runs/inc-2.3?seq=14&seq=3&at=20&with=3"),
        ("family", "/runs/inc-2?open=all"),
        ("past", "/runs/inc-2.3?at=10"),
        ("confirm", "/runs/inc-2?do=cancel"),
        ("missing", "/runs/none"),
    ):
        page.goto(path)
        checked(page, name)


def test_the_slider_goes_through_the_history(dev: Dev, page: Page) -> None:
    start(dev, "inc-3")
    page.goto("/")
    expect(page.locator("a.fam", has_text="inc-3")).to_be_visible(timeout=60_000)
    page.goto("/runs/inc-3.1")
    expect(page.locator("#head .pill")).to_have_text("completed", timeout=60_000)
    page.focus("#at")
    page.keyboard.press("Home")
    expect(page.locator("#travel output")).to_contain_text("event 1 of")
    expect(page.locator("#rows a.row:not(.off)")).to_have_count(0)
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#rows a.row:not(.off)")).to_have_count(1)
    expect(page).to_have_url(re.compile("at=4"))
    page.keyboard.press("End")
    expect(page.locator("#rows a.row.off")).to_have_count(0)


def test_without_javascript_the_same_is_said(dev: Dev, driven: Browser) -> None:
    context = driven.new_context(base_url=dev.state["gateway"], java_script_enabled=False)
    page = context.new_page()
    start(dev, "inc-4")
    eventually(lambda: httpx.get(f"{dev.state['gateway']}/api/runs/inc-4.3").is_success, within=60, what="the run")
    page.goto("/runs/inc-4.3")
    page.click("a[rel=prev]")
    assert "at=" in page.url
    page.goto("/runs/inc-4.3?do=cancel")
    page.fill("input[name=reason]", "no longer needed")
    page.click("section#do button")
    assert page.url.endswith("/runs/inc-4.3")
    eventually(lambda: "cancelled" in _again(page), within=60, what="the end of the run")
    context.close()


def _again(page: Page) -> str:
    page.reload()
    return page.inner_text("#head")


def test_an_incident_in_a_browser(dev: Dev, page: Page) -> None:
    start(dev, "inc-1")
    page.goto("/")
    expect(page.locator("#runs")).to_be_visible(timeout=60_000)
    page.goto("/inbox")
    asked = page.locator("a.fam", has_text="inc-1.3")
    expect(asked).to_contain_text("edit_file", timeout=30_000)
    asked.click()
    expect(page.locator(".diff .add mark")).to_have_text("50")
    page.fill("section.call textarea[name=message]", "50 is too much for this database")
    dev.kill("planner")
    page.click("button:text-is('Reject')")
    expect(page.locator(".quiet").first).to_contain_text("ada rejected", timeout=60_000)

    # The agent asks again by itself, with another number: the page shows it without being loaded anew by hand.
    expect(page.locator(".diff .add mark")).to_have_text("20", timeout=60_000)
    for name in ("gateway", "executor"):
        dev.kill(name)
    page.click("summary:text-is('Edit the arguments and approve')")
    args = page.locator("textarea[name=args]")
    args.fill(args.input_value().replace("pool_size = 20", "pool_size = 15"))
    eventually(lambda: ready(dev), within=60, what="the gateway")
    page.click("button:text-is('Ask the policy about these arguments')")
    expect(page.locator("main")).to_contain_text("Nothing was sent so far")
    expect(page.locator(".diff .add mark")).to_have_text("15")
    page.click("button:text-is('Approve with these arguments')")
    expect(page.locator("#head .pill")).to_have_text("completed", timeout=60_000)
    assert "pool_size = 15" in (dev.data / "shop/settings.toml").read_text()

    numbers = [int(each) for each in page.locator("#rows a.row .seq").all_inner_texts()]
    assert numbers == sorted(set(numbers))
    expect(page.locator(".crash").first).to_contain_text("went on from here")
