"""The first day in a browser alone: a project of `refold init` and the incident, each walked to its end."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.cli.terminal import Dev, refold, served
from tests.pages.test_browser import driven, page
from tests.waiting import eventually

__all__ = ["driven", "page"]
SOON_MS = 30_000
WAITS = """

@app.agent
async def patient(ctx: Context) -> str:
    await ctx.wait_for("first")
    await ctx.wait_for("second")
    return "done"
"""
"""An agent of which a test changes the code. It is there from the start: each change starts all processes anew."""


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    data = tmp_path_factory.mktemp("first")
    project = data / "shop"
    assert refold("init", str(project)).exit_code == 0
    app = project / "app.py"
    app.write_text(app.read_text().replace('Path("refunds")', f"Path({str(project / 'refunds')!r})") + WAITS)
    with served(app, data, LOGNAME="eve") as running:
        ready(running)
        yield running


def ready(dev: Dev) -> None:
    """Waits for the lines that say so: what they name answers at once, without another try."""
    log = dev.data / "dev.log"
    eventually(lambda: {"ready", "API"} <= {*log.read_text().split()}, within=90, what="`refold dev`")
    assert httpx.get(f"{dev.state['gateway']}/readyz").is_success
    assert httpx.get(f"{dev.state['gateway']}/").is_success


def start(page: Page, agent: str, run: str, given: str) -> None:
    page.goto("/start")
    expect(page.locator("select[name=agent]")).to_be_visible(timeout=SOON_MS)  # once a planner has reported
    page.select_option("select[name=agent]", agent)
    page.fill("textarea[name=input]", given)
    page.fill("input[name=id]", run)
    page.click("button:text-is('Start')")
    page.goto(f"/runs/{run}")


def act_as(page: Page, name: str) -> None:
    page.locator(f"section[id^=ask-] button:text-is('Act as {name}')").first.click(timeout=SOON_MS)
    expect(page.locator("#acting summary")).to_have_text(f"acting as {name}")


def yourself(page: Page) -> None:
    page.click("#acting summary")
    page.click("#acting button:text-is('yourself')")
    expect(page.locator("#acting summary")).to_have_text("eve")


def ends(page: Page, words: str) -> None:
    """The page shows how the run ended, without being loaded again: then what is noted in it would be gone."""
    page.evaluate("window.stays = true")
    expect(page.locator("#result")).to_contain_text(words, timeout=SOON_MS)
    assert page.evaluate("window.stays === true")


def test_a_new_project_is_approved_rejected_and_edited_in_the_browser(dev: Dev, page: Page) -> None:
    start(page, "goodwill", "big-1", '{"order":"order-7","cents":9000}')
    expect(page.locator("section[id^=ask-]")).to_contain_text("It waits for a person of support", timeout=SOON_MS)
    expect(page.locator("section[id^=ask-] button[name=action]")).to_have_count(0)
    act_as(page, "ada")
    page.click("section[id^=ask-] button:text-is('Approve')")
    ends(page, ".json")
    (vote,) = dev.read("approval", "show", dev.read("approval", "list", "--state", "all")[0]["approval"])["said"]
    assert (vote["actor"], vote["action"]) == ("ada", "approve")
    keys = {key["kid"]: key["actors"] for key in dev.read("keys", "list") if key["use"] == "vote"}
    assert sorted(actors for actors in keys.values() if actors) == [["ada"], ["bob"]]

    yourself(page)
    start(page, "goodwill", "big-2", '{"order":"order-7","cents":9000}')
    expect(page.locator("section[id^=ask-]")).to_be_visible(timeout=SOON_MS)
    page.goto("/inbox")
    page.locator("#inbox li", has_text="big-2").locator("button:text-is('Act as bob')").click(timeout=SOON_MS)
    expect(page.locator("#acting summary")).to_have_text("acting as bob")
    page.locator("#inbox a.fam", has_text="big-2").click()
    page.fill("section[id^=ask-] textarea[name=message]", "too much")
    page.click("button:text-is('Reject')")
    expect(page.locator("#result")).to_contain_text("no refund: too much", timeout=SOON_MS)

    yourself(page)
    start(page, "goodwill", "big-3", '{"order":"order-7","cents":9000}')
    act_as(page, "ada")
    page.click("summary:text-is('Edit the arguments')")
    page.fill("textarea[name=args]", '{"order":"order-7","cents":8000}')
    page.click("button:text-is('Ask the policy about these arguments')")
    page.click("button:text-is('Ask others about these arguments')")
    page.goto("/runs/big-3")
    expect(page.locator("section[id^=ask-]")).to_contain_text("8000", timeout=SOON_MS)
    expect(page.locator("section[id^=ask-] button:text-is('Approve')")).to_have_count(0)
    act_as(page, "bob")
    page.click("section[id^=ask-] button:text-is('Approve')")
    expect(page.locator("#result")).to_contain_text(".json", timeout=SOON_MS)


def test_a_change_of_the_app_is_taken_and_an_open_page_shows_the_failure_by_itself(dev: Dev, page: Page) -> None:
    app, log, planner = dev.data / "shop" / "app.py", dev.data / "dev.log", dev.pid("planner")
    first = app.read_text()
    app.write_text(first + "\nnot Python\n")
    eventually(lambda: "app.py, line" in log.read_text(), within=60, what="the fault of the app")
    start(page, "goodwill", "small-1", '{"order":"order-1","cents":900}')
    expect(page.locator("#result")).to_contain_text(".json", timeout=SOON_MS)  # by the code of before

    app.write_text(first.replace("    paid = await", '    assert cents, "nothing to give"\n    paid = await'))
    eventually(lambda: "in place of" in log.read_text(), within=60, what="the change of the app")
    eventually(lambda: dev.pid("planner") != planner, within=60, what="a planner with the change")
    start(page, "goodwill", "none-1", '{"order":"order-1","cents":0}')
    expect(page.locator("#head .pill").first).to_have_text("failed", timeout=SOON_MS)
    expect(page.locator("main")).to_contain_text("nothing to give")
    (killed,) = dev.read("dev", "kill", "executor")
    assert f"code {killed['code']} in place of" in re.sub(r"\s+", " ", log.read_text())


def test_an_open_page_shows_a_stall_by_itself_with_its_whole_text_and_the_way_out(dev: Dev, page: Page) -> None:
    app = dev.data / "shop" / "app.py"
    first = app.read_text()
    eventually(lambda: any(each["agent"] == "patient" for each in dev.read("worker", "list", "--agents")), within=60)
    dev.refold("run", "start", "patient", "--id", "waits-1")
    dev.refold("run", "signal", "waits-1", "first")
    eventually(lambda: len(dev.read("run", "show", "waits-1")["timeline"]) == 2, within=60, what="the second wait")
    page.goto("/runs/waits-1")
    expect(page.locator("#stalled")).to_have_count(0)
    page.evaluate("window.stays = true")

    planner = dev.pid("planner")
    app.write_text(first.replace('wait_for("first")', 'call(look_up, "order-1")'))
    eventually(lambda: dev.pid("planner") != planner, within=60, what="a planner with other code")
    dev.refold("run", "signal", "waits-1", "second")
    expect(page.locator("#stalled h2")).to_contain_text("Stalled: non_determinism", timeout=2 * SOON_MS)
    message = dev.read("run", "show", "waits-1")["hold"]["message"]
    assert message.strip()
    assert page.locator("#stalled pre").first.inner_text().strip() == message.strip()
    expect(page.locator("#stalled")).to_contain_text("The way out.")
    expect(page.locator("#stalled")).to_contain_text("refold run retry waits-1")
    expect(page.locator("#head .pill").first).to_have_text("stalled")
    expect(page.locator(".actions a.go")).to_contain_text("Run its code again", timeout=SOON_MS)

    planner = dev.pid("planner")
    app.write_text(first)
    eventually(lambda: dev.pid("planner") != planner, within=60, what="a planner with the code of before")
    ends(page, "done")
    expect(page.locator("#stalled")).to_have_count(0)
    assert page.evaluate("window.stays === true")


def test_no_decision_is_offered_while_kafka_does_not_answer_and_all_come_back(dev: Dev, page: Page) -> None:
    start(page, "goodwill", "big-9", '{"order":"order-7","cents":9000}')
    act_as(page, "ada")
    buttons = page.locator("section[id^=ask-] button[name=action], .actions a[href*='do=']")
    expect(page.locator("section[id^=ask-] button:text-is('Approve')")).to_be_visible(timeout=SOON_MS)
    inbox = page.context.new_page()
    inbox.goto("/inbox")
    expect(inbox.locator("#inbox input[type=checkbox]")).not_to_have_count(0)
    kafka = dev.pid("broker")
    os.kill(kafka, signal.SIGSTOP)
    try:
        for each in (page, inbox):
            expect(each.locator("#away")).to_contain_text("Kafka does not answer the gateway", timeout=2 * SOON_MS)
        expect(page.locator("section[id^=ask-]")).to_contain_text("Nobody can decide it now")
        expect(buttons).to_have_count(0)
        expect(inbox.locator("#inbox input[type=checkbox]")).to_have_count(0)
        assert httpx.post(f"{dev.state['gateway']}/api/runs/big-9/pause", json={}).status_code == 503
    finally:
        os.kill(kafka, signal.SIGCONT)
    for each in (page, inbox):
        expect(each.locator("#away")).to_have_count(0, timeout=2 * SOON_MS)
    expect(inbox.locator("#inbox input[type=checkbox]")).not_to_have_count(0)
    page.click("section[id^=ask-] button:text-is('Approve')", timeout=SOON_MS)
    expect(page.locator("#result")).to_contain_text(".json", timeout=SOON_MS)
