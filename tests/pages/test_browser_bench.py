"""Screens out of views in memory in a browser: with hostile, large and deep text everywhere, and with nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from refold.console.gateway.app import build_api
from refold.core.ids import RunId, hold_key, home
from refold.core.messages import Hold
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.runtime.settings import GatewayPart
from tests.gateway.test_hostile import Heard
from tests.gateway.test_logins import Keys
from tests.gateway.test_reading import Bench
from tests.pages.browser import site_of
from tests.pages.hostile import CORPUS, HEAVY, hostile, nested, reads
from tests.pages.test_browser import checked, driven, page
from tests.pages.test_screens import emptied, of_people, write_beside

__all__ = ["driven", "page"]
QUESTION = f"11~{4:032x}"
SEEN = tuple(f"?seq={seq}" for seq in (1, 3, 6, 9, 12, 13))
SHOWN = ("", "?show=events", "?show=conversation", "?at=4&with=9", "?open=all", *SEEN)


class Served:
    """A site as `page` wants it."""

    def __init__(self, base: str) -> None:
        self.state = {"gateway": base}


@pytest.fixture(scope="module")
def bench() -> Bench:
    bench = Bench()
    everything = " ".join(text for text in CORPUS if "\ud800" not in text)
    for number, text in enumerate((everything, *CORPUS)):
        pairs = [*hostile(f"open-{number}", text), *hostile(f"over-{number}", text, over=True)]
        for key, value in (*pairs, *of_people(f"told-{number}", text)):
            bench.log.write(key, value)
        if "\ud800" not in text:
            write_beside(bench, number, text)
    for name, text in HEAVY.items():
        for key, value in nested(name, text):
            bench.log.write(key, value)
    for key, value in reads("reads"):
        bench.log.write(key, value)
    hold = Hold(RunId("reads"), "stalled", "non_determinism", "step 2 is another", needs="v7", code="v8", member="p")
    bench.log.append(RUN_SNAPSHOT, home(hold.run_id, 2), hold_key(hold.run_id), codec.encode(hold))
    bench.catch_up()
    return bench


@pytest.fixture(scope="module")
def dev(bench: Bench) -> Iterator[Served]:
    with site_of(build_api(bench.gateway)) as base:
        yield Served(base)


def is_text_alone(page: Page, path: str) -> None:
    """Fails where a text has run, or is wider than a phone."""
    page.set_viewport_size({"width": 360, "height": 900})
    page.goto(path)
    expect(page.locator("main")).to_be_visible()
    for each in page.locator("main summary").all()[:12]:
        each.evaluate("it => { it.parentElement.open = true }")
    assert page.evaluate("window.ran") is None, path
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    assert page.locator("main script, main iframe, main img, main [onload], main [onerror]").count() == 0, path


@pytest.mark.pages
def test_hostile_text_is_text_on_every_screen(bench: Bench, page: Page) -> None:
    screens = ("/", "/sessions", "/tools?days=90", "/limits", "/operators", "/dead-letters", "/workers")
    inbox = tuple(f"/inbox?show={tab}" for tab in ("all", "doubt", "decided"))
    runs = [f"/runs/{run}{shown}" for run in ("open-0", "over-0") for shown in SHOWN]
    for path in (*screens, *inbox, *runs, f"/approvals/open-0/{QUESTION}", f"/approvals/over-0/{QUESTION}"):
        is_text_alone(page, path)


@pytest.mark.parametrize("name", HEAVY)
def test_large_and_deep_values_keep_the_width(bench: Bench, page: Page, name: str) -> None:
    for shown in ("", "?show=conversation", "?at=3&with=9", "?seq=1&seq=6&seq=12"):
        is_text_alone(page, f"/runs/{name}{shown}")
    is_text_alone(page, f"/approvals/{name}/6~{2:032x}")


@pytest.mark.pages
@pytest.mark.parametrize("number", range(1, len(CORPUS) + 1))
def test_each_hostile_text_is_text(bench: Bench, page: Page, number: int) -> None:
    runs = [
        f"/runs/{run}-{number}{shown}" for run in ("open", "over", "told") for shown in ("", *SHOWN[1:4], *SEEN[:3])
    ]
    for path in (*runs, f"/approvals/open-{number}/{QUESTION}", f"/approvals/over-{number}/{QUESTION}"):
        is_text_alone(page, path)


@pytest.mark.pages
def test_screens_with_hostile_text_are_for_everybody(bench: Bench, page: Page) -> None:
    ends = bench.gateway.writing._refusals.ends
    for name, path in (
        ("hostile-runs", "/?state=running"),
        ("hostile-run", "/runs/over-0?seq=6&seq=4"),
        ("hostile-inbox", "/inbox?show=all"),
        ("hostile-approval", f"/approvals/open-0/{QUESTION}"),
        ("stalled", "/runs/reads"),
        ("failed", "/runs/over-0"),
        ("health-alone", "/workers"),
        ("unavailable", "/versions"),
    ):
        page.goto(path)
        checked(page, name)
    ends.append((time.monotonic() - 3.5, {(RUN_LOG, 0): 10**6}))
    page.goto("/runs/open-0")
    expect(page.locator("#behind")).to_contain_text("s behind")
    checked(page, "behind")
    ends.clear()
    bench.log.mark("over-1")
    bench.log.bury("over-1")
    bench.catch_up()
    page.goto("/runs/over-1")
    expect(page.locator("main")).to_contain_text("was erased")
    checked(page, "erased")


@pytest.mark.pages
def test_empty_screens_are_for_everybody(page: Page) -> None:
    with site_of(build_api(emptied().gateway)) as base:
        for name, path in (
            ("runs-empty", "/"),
            ("inbox-empty", "/inbox"),
            ("sessions-empty", "/sessions"),
            ("tools-empty", "/tools"),
            ("schedules-empty", "/schedules"),
            ("limits-empty", "/limits"),
            ("operators-empty", "/operators"),
            ("letters-empty", "/dead-letters"),
        ):
            page.goto(base + path)
            checked(page, name)


@pytest.mark.pages
def test_the_way_in_is_for_everybody(page: Page, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "api.json")
    token = keys.new("ada", "admin")
    bench = Bench(Heard, GatewayPart(api_keys=str(keys.path)))
    with site_of(build_api(bench.gateway)) as base:
        page.goto(base)
        checked(page, "login")
        page.fill("input[name=key]", "rfk_none")
        page.press("input[name=key]", "Enter")
        expect(page.locator("main")).to_contain_text("key", timeout=10_000)
        checked(page, "login-refused")
        page.goto(base)
        page.fill("input[name=key]", token)
        page.press("input[name=key]", "Enter")
        expect(page.locator("h1")).to_have_text("Runs")
        page.click("text=Log out")
        expect(page.locator("input[name=key]")).to_be_visible()
