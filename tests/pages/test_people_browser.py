"""Questions to people in a browser: every screen for everybody, by keyboard alone, and live."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.cli.terminal import Dev
from tests.pages.test_browser import checked, driven, page
from tests.pages.test_people import asked, http, said, shop, waits
from tests.waiting import eventually

__all__ = ["driven", "http", "page", "shop"]
pytestmark = pytest.mark.pages


@pytest.fixture(scope="module")
def dev(shop: Dev) -> Dev:
    return shop


def test_every_screen_of_questions_is_for_everybody(shop: Dev, http: httpx.Client, page: Page) -> None:
    approval, other = asked(shop, http, "see-1", amount=120), asked(shop, http, "see-2")
    shop.refold("approval", "comment", approval, "what is it for, and who has asked for it?", "--actor", "bob")
    shop.refold("approval", "delegate", approval, "dora", "--actor", "bob")
    hold = shop.data / "world/hold"
    hold.touch()
    shop.refold("run", "start", "poster", "--id", "see-3", "--input", '{"letter":"dear eve"}')
    eventually(lambda: (shop.data / "world/posted").exists(), within=60, what="the letter")
    shop.kill("executor")
    hold.unlink()
    doubt = waits(shop, http, "see-3")

    for name, path in (
        ("approval", f"/approvals/{approval}"),
        ("approval-doubt", f"/approvals/{doubt}"),
        ("inbox-mine", "/inbox"),
        ("inbox-all", "/inbox?show=all"),
        ("inbox-doubt", "/inbox?show=doubt"),
    ):
        page.goto(path)
        checked(page, name)

    page.goto(f"/approvals/{doubt}")
    page.evaluate("document.querySelectorAll('input[name=question]').forEach(each => each.value = '0'.repeat(64))")
    page.click("button:text-is('Give up')")
    expect(page.locator("h1")).to_have_text("Nothing was sent")
    checked(page, "outcome-refused")

    page.goto(f"/approvals/{approval}")
    page.click("summary:text-is('Edit the arguments')")
    page.fill("textarea[name=args]", '{"to":"eve","amount":600}')
    page.click("button:text-is('Ask the policy about these arguments')")
    checked(page, "approval-edit")

    page.goto(f"/approvals/{approval}")
    page.evaluate("document.querySelectorAll('input[name=question]').forEach(each => each.value = '0'.repeat(64))")
    page.fill("section.call textarea[name=message]", "it is too much")
    page.click("button:text-is('Reject')")
    expect(page.locator("h1")).to_have_text("Nothing was sent")
    checked(page, "approval-refused")

    page.goto("/inbox")
    for each in (approval, other):
        page.check(f"input[name='pick:{each}']")
    page.click("text=Decide the chosen ones…")
    checked(page, "inbox-chosen")
    shop.refold("approval", "reject", other, "--actor", "bob", "--message", "no")
    page.click("button:has-text('Approve 2')")
    expect(page.locator("h1")).to_have_text("1 of 2 votes are in")
    checked(page, "inbox-came")
    for name, path in (("inbox-decided", "/inbox?show=decided"), ("approval-decided", f"/approvals/{other}")):
        page.goto(path)
        checked(page, name)


def test_a_key_leads_to_a_button_and_presses_none(shop: Dev, http: httpx.Client, page: Page) -> None:
    approval = asked(shop, http, "key-1")
    page.goto(f"/approvals/{approval}")
    for key, words in (("a", "Approve"), ("r", "Reject"), ("e", "Edit the arguments")):
        page.keyboard.press(key)
        expect(page.locator(":focus")).to_have_text(words)
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    args = page.locator("textarea[name=args]")
    expect(args).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type('{"to":"eve","amount":3}')
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("with these arguments?")
    assert said(shop, approval) == []
    page.keyboard.press("a")
    expect(page.locator(":focus")).to_have_text("Ask others about these arguments")
    assert said(shop, approval) == []
    page.keyboard.press("Enter")
    expect(page.locator("#head .pill").first).not_to_have_text("completed")
    assert said(shop, approval) == [("ada", "edit")]


def test_a_question_and_the_inbox_change_by_themselves(shop: Dev, http: httpx.Client, page: Page) -> None:
    approval = asked(shop, http, "live-1")
    page.goto(f"/approvals/{approval}")
    page.fill("#say", "half of a senten")
    shop.refold("approval", "comment", approval, "is this right?", "--actor", "bob")
    expect(page.locator(".said-list")).to_contain_text("is this right?", timeout=30_000)
    expect(page.locator("#say")).to_have_value("half of a senten")

    page.goto("/inbox")
    later = asked(shop, http, "live-2")
    expect(page.locator(f"a[href='/approvals/{later}']")).to_be_visible(timeout=10_000)
    page.check(f"input[name='pick:{approval}']")
    asked(shop, http, "live-3")
    page.wait_for_timeout(1_500)
    expect(page.locator(f"input[name='pick:{approval}']")).to_be_checked()
    page.uncheck(f"input[name='pick:{approval}']")
    expect(page.locator("#inbox")).to_contain_text("live-3", timeout=30_000)


def test_all_of_it_is_done_without_javascript(shop: Dev, http: httpx.Client, page: Page) -> None:
    approval = asked(shop, http, "plain-1")
    browser = page.context.browser
    assert browser is not None
    context = browser.new_context(base_url=shop.state["gateway"], java_script_enabled=False)
    plain = context.new_page()
    plain.goto("/inbox")
    plain.click(f"a[href='/approvals/{approval}']")
    plain.fill("#say", "why?")
    plain.click("text=Ask or comment")
    eventually(lambda: _again(plain, "why?"), within=30, what="the comment")
    plain.fill("section.call textarea[name=message]", "no need")
    plain.click("button:text-is('Reject')")
    assert re.search("/runs/plain-1$", plain.url)
    eventually(lambda: _again(plain, "“no need”"), within=30, what="the verdict on the run")
    context.close()


def _again(page: Page, words: str) -> bool:
    page.goto(page.url)  # a reload of what a form has led to may find no page that is attached
    return words in page.inner_text("main")
