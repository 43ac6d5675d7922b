"""The screens beside the run page in a browser, on a platform where hostile text lies in every topic that they read."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Page, expect

from refold.core.messages import Member, MemberAgent, MemberTool
from refold.core.topics import MEMBER, RUN_REQUESTED, RUN_SIGNALLED
from refold.core.wire import codec
from tests.cli.terminal import Dev
from tests.pages.hostile import CORPUS
from tests.pages.test_browser import checked, dev, driven, page, start

SEND_FORM = """() => {
  const form = document.querySelector("#start form");
  return fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
}"""
__all__ = ["dev", "driven", "page"]
pytestmark = pytest.mark.pages


@pytest.fixture(scope="module")
def seeded(dev: Dev) -> Dev:
    """With a paused and a cancelled run in a session, refused inputs, and a member whose every name is hostile."""
    words = ("run", "start", "incident", "--session", "shop-7", "--input", '{"service":"shop"}', "--id")
    for run in ("scr-1", "scr-2"):
        dev.refold(*words, run)
    producer = Producer({"bootstrap.servers": dev.state["kafka"]})
    texts = [text for text in CORPUS if "\ud800" not in text]
    for number, text in enumerate(texts):
        garbage = text.encode() * (300 if number == 0 else 1)
        for topic in (RUN_REQUESTED, RUN_SIGNALLED):
            producer.produce(f"refold.{topic}", key=f"scr-{number}".encode(), value=garbage, partition=0)
        name = text[:60]
        tool = MemberTool(name, name, name, name, [name], approval=True, schema="")
        member = Member(f"{number}-{name}", "planner", name, 1, name, [MemberAgent(name, name, {name: name})], [tool])
        producer.produce(f"refold.{MEMBER}", key=member.name.encode(), value=codec.encode(member), partition=0)
    assert producer.flush(20) == 0
    dev.refold("run", "pause", "scr-2", "--reason", CORPUS[0])
    dev.refold("halt", "--tool", CORPUS[1][:30], "--reason", CORPUS[7])
    return dev


def test_every_other_screen_is_for_everybody(seeded: Dev, page: Page) -> None:
    page.goto("/dead-letters")
    expect(page.locator("#letters tbody tr").first).to_be_visible(timeout=30_000)
    letter = page.locator("#letters td:last-child a").last.get_attribute("href")
    for name, path in (
        ("filter", "/?text=scr&agent=incident"),
        ("sessions", "/sessions"),
        ("session", "/sessions?session=shop-7"),
        ("tools", "/tools"),
        ("tool", "/tools?agent=coder&tool=read_file"),
        ("schedules", "/schedules"),
        ("limits", "/limits"),
        ("operators", "/operators"),
        ("letters", "/dead-letters"),
        ("letter", f"{letter}?whole=true"),
        ("replay", f"{letter}?dry_run=true"),
        ("policies", "/policies"),
        ("versions", "/versions"),
        ("health", "/workers"),
        ("start", "/start"),
    ):
        page.goto(path)
        expect(page.locator("h1")).not_to_contain_text("Unavailable")
        checked(page, name)
        assert page.evaluate("window.ran") is None, name
    page.goto("/workers")
    page.click("#menu summary")
    checked(page, "menu")


def test_a_run_is_started_from_the_page_once(seeded: Dev, page: Page) -> None:
    page.goto("/start")
    page.fill("textarea[name=input]", "{")
    page.click("button:text-is('Start')")
    expect(page.locator("main")).to_contain_text("JSON")
    checked(page, "start-refused")
    page.goto("/start")
    page.select_option("select[name=agent]", "analyst")
    page.fill("textarea[name=input]", '{"prompt": "look at the log"}')
    page.fill("input[name=label]", "team=pay")
    run = page.input_value("input[name=id]")
    # Twice: a second press while the first is under way sends the same form again.
    page.evaluate(SEND_FORM)
    page.click("button:text-is('Start')")
    expect(page).to_have_url(re.compile(f"/runs/{run}$"))
    page.goto("/?label=team%3Dpay")
    expect(page.locator("#runs a.fam")).to_have_count(1)


def test_a_dead_letter_is_replayed_in_two_steps(seeded: Dev, page: Page) -> None:
    page.goto("/dead-letters")
    page.locator("#letters td:last-child a").first.click()
    page.click("text=Replay: try it first")
    expect(page.locator("#replay")).to_contain_text("Nothing was sent")
    page.click("button:text-is('Replay')")
    expect(page.locator("#sent")).to_contain_text("It lies in run-")
    checked(page, "replayed")


def test_a_draft_is_tried_and_changes_nothing(seeded: Dev, page: Page) -> None:
    before = seeded.read("policy", "show")["current"]
    page.goto("/policies")
    draft = "rules:\n- name: <img src=x>\n  when: 'true'\n  deny: nothing today\n"
    page.set_input_files("input[type=file]", {"name": "p.yaml", "mimeType": "text/yaml", "buffer": draft.encode()})
    expect(page.locator("textarea[name=policy]")).to_have_value(draft)
    page.click("button:text-is('Compare')")
    expect(page.locator("#tried h2")).to_contain_text("judged otherwise")
    expect(page.locator("#tried")).to_contain_text("<img src=x>, nothing today")
    checked(page, "draft")
    page.fill("textarea[name=policy]", "rules:\n- name: x\n  when: 'no sense'\n  allow: true\n")
    page.click("button:text-is('Compare')")
    expect(page.locator("#problems")).to_contain_text("no policy")
    checked(page, "problems")
    assert seeded.read("policy", "show")["current"] == before


def test_a_list_asks_only_for_what_has_changed(seeded: Dev, page: Page) -> None:
    page.goto("/?text=late-one")
    expect(page.locator("#runs")).to_contain_text("No run matches")
    with page.expect_response(lambda got: got.url.endswith("late-one") and got.status == 304, timeout=30_000):
        pass
    start(seeded, "late-one")
    expect(page.locator("#runs a.fam").last).to_contain_text("late-one", timeout=30_000)


def test_the_menu_holds_all_pages_at_phone_width(seeded: Dev, page: Page) -> None:
    page.set_viewport_size({"width": 320, "height": 700})
    page.goto("/")
    page.focus("#menu summary")
    page.keyboard.press("Enter")
    links = page.locator("#menu nav a")
    expect(links).to_have_count(10)
    for number in range(10):
        expect(links.nth(number)).to_be_in_viewport()
    links.nth(9).click()
    expect(page.locator("h1")).to_have_text("Workers")
    page.emulate_media(media="print")
    expect(page.locator(".top")).to_be_hidden()
