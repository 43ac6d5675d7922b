"""The incident in a browser: watched, rejected, edited and approved, with every process killed on the way."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.cli.terminal import Dev, served
from tests.pages.browser import SCREENS, browser, chromium
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
INCIDENT = ROOT / "examples/incident/app.py"
AXE = Path(__file__).with_name("axe.min.js")
SHOTS = ROOT / ".ci/pages"
ALL_ROWS = """() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("* { content-visibility: visible !important }");
  document.adoptedStyleSheets = [sheet];
}"""
"""Draws rows that are out of view, too, which a picture of a whole page leaves blank."""

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
    page.add_init_script("addEventListener('securitypolicyviolation', e => report(e.violatedDirective + e.blockedURI))")
    page.expose_function("report", lambda said: wrong.append(said))
    yield page
    context.close()
    assert not wrong


def start(dev: Dev, run: str) -> None:
    dev.refold("run", "start", "incident", "--id", run, "--requester", "eve", "--input", '{"service":"shop"}')


def waiting(dev: Dev, run: str) -> set[str]:
    return {each["approval"] for each in dev.read("approval", "list", "--run", run)}


def ready(dev: Dev) -> bool:
    try:
        return httpx.get(f"{dev.state['gateway']}/readyz").is_success
    except httpx.TransportError:
        return False


def checked(page: Page, name: str) -> None:
    """Takes pictures of a screen in light, dark and narrow, and has each checked for what shuts people out."""
    (route,) = [route for route, names in SCREENS.items() if name in names]
    assert re.fullmatch(re.sub(r"\\{\w+(:path)?\\}", ".+", re.escape(route)), urlsplit(page.url).path), name
    SHOTS.mkdir(parents=True, exist_ok=True)
    for look, scheme, width in (("light", "light", 1360), ("dark", "dark", 1360), ("narrow", "light", 320)):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, look)
        page.evaluate(ALL_ROWS)
        page.screenshot(path=SHOTS / f"{name}-{look}.png", full_page=True)
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})")
        flaws = [(flaw["id"], [node["html"][:200] for node in flaw["nodes"][:3]]) for flaw in found["violations"]]
        assert not flaws, (name, look)
    page.set_viewport_size({"width": 1360, "height": 900})


PLACES = (
    ("runs", "/"),
    ("runs-none", "/?agent=none"),
    ("inbox", "/inbox"),
    ("health", "/workers"),
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
)
"""Pictures of what runs and questions look like, once inc-2 asks."""


@pytest.mark.pages
def test_every_screen_is_for_everybody(dev: Dev, page: Page) -> None:
    start(dev, "inc-2")
    page.goto("/")
    expect(page.locator("#runs a.fam").first).to_be_visible(timeout=60_000)
    expect(page.locator("text=waits for people").first).to_be_visible(timeout=30_000)
    for name, path in PLACES:
        page.goto(path)
        checked(page, name)


@pytest.mark.pages
def test_the_slider_goes_through_the_history(dev: Dev, page: Page) -> None:
    start(dev, "inc-3")
    page.goto("/")
    expect(page.locator("a.fam", has_text="inc-3")).to_be_visible(timeout=60_000)
    page.goto("/runs/inc-3.1")
    expect(page.locator("#head .pill")).to_have_text("completed", timeout=60_000)
    checked(page, "completed")
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


@pytest.mark.pages
def test_all_of_it_is_read_without_javascript_on_a_phone(dev: Dev, driven: Browser, page: Page) -> None:
    context = driven.new_context(
        base_url=dev.state["gateway"], java_script_enabled=False, viewport={"width": 360, "height": 700}
    )
    plain = context.new_page()
    page.goto("/runs/inc-2.3")
    expect(page.locator("section[id^=ask-]")).to_be_visible(timeout=60_000)
    for name, path in PLACES:
        page.goto(path)
        plain.goto(path)
        assert plain.inner_text("h1") == page.inner_text("h1"), name
        for part in ("#rows > *", "section", "form", "main a[href]"):
            assert plain.locator(part).count() == page.locator(part).count(), (name, part)
        assert plain.evaluate("document.documentElement.scrollWidth") <= 360, name
    plain.goto("/runs/inc-2.3")
    plain.click("a.row >> nth=0")
    expect(plain.locator(".panel .chain")).to_be_visible()
    plain.locator(".panel .chain a").last.click()
    expect(plain.locator(".panel .chain")).to_contain_text("by eve")
    context.close()


@pytest.mark.pages
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


def tab_to(page: Page, place: str) -> None:
    """Goes to an element by Tab alone; fails where the focus cannot be seen."""
    target = page.locator(place)
    expect(target.first).to_be_visible(timeout=30_000)
    for _ in range(400):
        page.keyboard.press("Tab")
        if target.first.evaluate("it => it === document.activeElement"):
            break
    else:
        raise AssertionError(f"Tab does not lead to {place}")
    assert target.first.evaluate("it => getComputedStyle(it).outlineStyle !== 'none'"), (
        f"the focus on {place} is unseen"
    )


def press(page: Page, place: str, *keys: str) -> None:
    tab_to(page, place)
    for key in keys or ("Enter",):
        page.keyboard.press(key)


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.id"))


@pytest.mark.pages
def test_an_incident_by_keyboard_alone_with_everything_killed(dev: Dev, page: Page) -> None:
    page.goto("/")
    press(page, "a[href='/start']")
    tab_to(page, "select[name=agent]")
    page.keyboard.type("incident")
    press(page, "textarea[name=input]", "Control+a")
    page.keyboard.insert_text('{"service":"shop"}')
    run = page.input_value("input[name=id]")
    press(page, "button:text-is('Start')")
    expect(page).to_have_url(re.compile(f"/runs/{run}$"), timeout=30_000)
    dev.kill("planner")

    press(page, f"[id='k{run}.1']")
    expect(page.locator("#rows")).to_contain_text("query_log", timeout=30_000)
    assert focused(page) == f"k{run}.1"  # and not lost when the rows were replaced

    # Nobody decides about what they have asked for themselves: this one is asked for by eve.
    run = "inc-1"
    start(dev, run)
    press(page, "nav[aria-label=Pages] a[href='/inbox']")
    expect(page.locator("a.fam", has_text=f"{run}.3")).to_contain_text("edit_file", timeout=60_000)
    page.keyboard.press("j")
    while f"{run}.3" not in page.locator(":focus").inner_text():
        page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator(".diff .add mark")).to_have_text("50")
    tab_to(page, "section.call textarea[name=message]")
    page.keyboard.type("50 is too much for this database")
    dev.kill("gateway")  # and the projector, which it hosts
    expect(page.locator("#live")).to_contain_text("this may be old", timeout=15_000)
    eventually(lambda: ready(dev), within=60, what="the gateway")
    expect(page.locator("#live")).to_have_text("live", timeout=30_000)
    expect(page.locator("section.call textarea[name=message]")).to_be_focused()
    press(page, "button:text-is('Reject')")
    expect(page.locator(".quiet").first).to_contain_text("ada rejected", timeout=60_000)

    # The agent asks again by itself, with another number: the page shows it without being loaded anew by hand.
    expect(page.locator(".diff .add mark")).to_have_text("20", timeout=60_000)
    dev.kill("executor")
    page.keyboard.press("e")
    page.keyboard.press("Enter")
    args = page.input_value("textarea[name=args]").replace("pool_size = 20", "pool_size = 15")
    press(page, "textarea[name=args]", "Control+a")
    page.keyboard.insert_text(args)
    press(page, "button:text-is('Ask the policy about these arguments')")
    expect(page.locator("main")).to_contain_text("Nothing was sent so far")
    expect(page.locator(".diff .add mark")).to_have_text("15")
    page.keyboard.press("a")
    expect(page.locator(":focus")).to_have_text("Ask others about these arguments")
    edited = re.search("/approvals/(.+)/vote", page.locator("#ask-edit form").get_attribute("action") or "")
    assert edited is not None
    page.keyboard.press("Enter")

    # Nobody decides about arguments that they have written either: the page of the question says so, and bob decides.
    theirs = eventually(
        lambda: waiting(dev, f"{run}.3") - {unquote(edited[1])}, within=60, what="the question to others"
    ).pop()
    eventually(
        lambda: "You may not decide" in page.request.get(f"/approvals/{quote(theirs, safe='')}").text(),
        within=30,
        what="the page of the question",
    )
    expect(page.locator(".diff .add mark")).to_have_text("15")
    expect(page.locator("#head .pill")).to_have_text("waits for people")
    assert "pool_size = 15" not in (dev.data / "shop/settings.toml").read_text()
    dev.refold("approval", "approve", theirs, "--actor", "bob")
    expect(page.locator("#head .pill")).to_have_text("completed", timeout=60_000)
    assert "pool_size = 15" in (dev.data / "shop/settings.toml").read_text()

    # Back through the history, and from an event to the request of the run above.
    press(page, "#at", "Home", "ArrowRight", "ArrowRight", "ArrowRight")
    expect(page).to_have_url(re.compile("at=4"))
    expect(page.locator("#at")).to_be_focused()
    page.keyboard.press("End")
    expect(page).not_to_have_url(re.compile("at="))
    page.keyboard.press("Tab")
    page.keyboard.press("[")
    expect(page.locator("#travel output")).to_contain_text("event")
    expect(page).to_have_url(re.compile("at="))
    for key in "jjk":
        page.keyboard.press(key)
    row = focused(page)
    page.keyboard.press("Enter")
    expect(page.locator(".panel .chain")).to_be_visible()
    assert focused(page) == row
    press(page, ".panel .chain li:last-child > div > a")
    expect(page).to_have_url(re.compile(f"/runs/{run}\\?seq="))
    expect(page.locator(".panel .chain")).to_contain_text("by eve")
    press(page, "details[id^=copy-] summary")
    press(page, "input[name=with]", "Control+a", "7", "Enter")
    expect(page.locator("#diff .delta .add").first).to_be_visible()
    press(page, "#shows a >> nth=1")
    expect(page.locator("#rows a.row .nm").first).to_contain_text("Run requested")
    numbers = [int(each) for each in page.locator("#rows a.row .seq").all_text_contents()]
    assert numbers == list(range(1, len(numbers) + 1))
    page.keyboard.press("/")
    assert focused(page) == "q"


@pytest.mark.pages
def test_an_incident_is_walked_to_its_end_on_its_own_page(dev: Dev, page: Page) -> None:
    start(dev, "inc-page")
    page.goto("/")
    expect(page.locator("a.fam", has_text="inc-page").first).to_be_visible(timeout=60_000)
    page.goto("/runs/inc-page")
    page.evaluate("window.stays = true")
    question = page.locator("section[id^=ask-]")
    expect(question.locator("a[href='/runs/inc-page.3']").first).to_be_visible(timeout=60_000)
    assert page.evaluate("window.stays === true")

    page.click("#acting summary")
    page.click("#acting button:text-is('cleo')")
    expect(page.locator("#acting summary")).to_have_text("acting as cleo")
    expect(question).to_contain_text("It waits for a person of oncall")
    expect(question.locator("button[name=action]")).to_have_count(0)
    question.locator("button:text-is('Act as bob')").click()
    question.locator("textarea[name=message]").fill("50 is too much")
    question.locator("button:text-is('Reject')").click()
    page.goto("/runs/inc-page")
    expect(question.locator("button:text-is('Approve')")).to_be_visible(timeout=60_000)  # the smaller change
    question.locator("button:text-is('Approve')").click()
    page.goto("/runs/inc-page")
    page.evaluate("window.stays = true")
    expect(page.locator("#result")).to_contain_text("cause", timeout=60_000)
    assert page.evaluate("window.stays === true")
