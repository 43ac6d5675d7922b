"""Questions to people on a real platform: what may have changed between a look and a click, and every way to decide."""

from __future__ import annotations

import html
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from refold.cli.platform import connect
from refold.client.operations import approvals
from refold.console.gateway.app import routed
from refold.core.errors import ConflictError
from tests.cli.terminal import Dev, served
from tests.cli.test_gateway_live import answers
from tests.pages.hostile import CORPUS
from tests.pages.test_pages import KNOWN_TAGS, Tags
from tests.waiting import eventually

SHOP = Path(__file__).with_name("shop")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    data = tmp_path_factory.mktemp("shop")
    (data / "world").mkdir()
    with served(SHOP / "app.py", data, LOGNAME="ada", SHOP_FOLDER=str(data / "world")) as running:
        yield running


@pytest.fixture(scope="module")
def http(shop: Dev) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shop.state["gateway"], timeout=60) as client:
        eventually(lambda: answers(client), within=60, what="the gateway")
        yield client


def asked(shop: Dev, http: httpx.Client, run: str, to: str = "eve", amount: int = 7) -> str:
    """The question of a run that wants to pay, once the view and the topic have it."""
    given = json.dumps({"to": to, "amount": amount})
    shop.refold("run", "start", "payer", "--id", run, "--requester", "eve", "--input", given)
    return waits(shop, http, run)


def waits(shop: Dev, http: httpx.Client, run: str) -> str:
    def open_now() -> str:
        found = [each["approval"] for each in shop.read("approval", "list", "--run", run)]
        return found[0] if found and http.get(f"/approvals/{found[0]}").is_success else ""

    return str(eventually(open_now, within=60, what=f"the question of {run}"))


def text(answer: httpx.Response) -> str:
    """The words of a page."""
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.text)))


def form(http: httpx.Client, approval: str) -> dict[str, str]:
    """The hidden fields of the form that decides."""
    page = http.get(f"/approvals/{approval}")
    card = page.text[page.text.index('id="ask-') :]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', card)[:2])


def vote(http: httpx.Client, approval: str, shown: dict[str, str], **fields: str) -> httpx.Response:
    return http.post(f"/approvals/{approval}/vote", data={**shown, **fields})


def said(shop: Dev, approval: str) -> list[tuple[str, str]]:
    """Who has said what, by the topic itself."""
    return [(each["actor"], each["action"]) for each in shop.read("approval", "show", approval)["said"]]


def ended(http: httpx.Client, run: str) -> Any:
    return eventually(
        lambda: (found := http.get(f"/api/runs/{run}").json())["status"] == "completed" and found, within=60
    )


def test_a_question_is_shown_with_all_that_there_is_to_know(shop: Dev, http: httpx.Client) -> None:
    approval = asked(shop, http, "all-1", amount=77)
    page = text(http.get(f"/approvals/{approval}"))

    for words in (
        *(
            '"amount": 77',
            "clerks pay",
            "Look at the amount.",
            "1 of role:clerk",
            "ada, bob",
            "not who asked for the run",
        ),
        *("eve says so, not verified", "Expires never", "goes out again with the same key", "The tool does not run"),
        *("Nothing goes out before somebody has decided", "SHA-256", "None so far", approval[-32:]),
    ):
        assert words in page, words
    assert re.search("tool.name pay", page)
    assert not said(shop, approval)


def test_an_edit_is_sent_once_the_policy_was_asked_about_it(shop: Dev, http: httpx.Client) -> None:
    approval = asked(shop, http, "edit-1", amount=50)
    shown = form(http, approval)
    same = vote(http, approval, shown, action="edit", args='{"to":"eve","amount":40}')
    others = vote(http, approval, shown, action="edit", args='{"to":"eve","amount":600}')
    denied = vote(http, approval, shown, action="edit", args='{"to":"eve","amount":5000}')
    none = vote(http, approval, shown, action="edit", args="[]")

    assert "asks others than you about these arguments" in text(same)
    assert "Nothing was sent so far" in text(same)
    assert "The policy asks 1 of role:head about these arguments" in text(others)
    assert (denied.status_code, "Nothing was sent" in text(denied)) == (409, True)
    assert "Nobody pays more than 1000" in text(denied)
    assert none.status_code == 422
    assert said(shop, approval) == []

    sure = vote(http, approval, shown, action="edit", args='{"to":"eve","amount":40}', sure="yes")

    assert (sure.status_code, sure.headers["location"]) == (303, "/runs/edit-1")
    theirs = eventually(lambda: {waits(shop, http, "edit-1")} - {approval}, what="the question to others").pop()
    assert "You may not decide" in text(http.get(f"/approvals/{theirs}"))


def test_an_edit_that_needs_others_becomes_their_question(shop: Dev, http: httpx.Client) -> None:
    approval = asked(shop, http, "edit-2")
    vote(http, approval, form(http, approval), action="edit", args='{"to":"eve","amount":600}', sure="yes")
    theirs = waits(shop, http, "edit-2")
    page = text(http.get(f"/approvals/{theirs}"))

    assert "You may not decide" in page
    assert "Edited before: the arguments that the agent proposed" in page
    refused = vote(http, theirs, form_without_buttons(http, theirs), action="approve")
    assert (refused.status_code, "Nothing was sent" in text(refused)) == (409, True)
    assert "ada has asked for the run or its arguments and may not decide on it" in text(refused)
    assert said(shop, theirs) == []


def form_without_buttons(http: httpx.Client, approval: str) -> dict[str, str]:
    """The fields that a form would have had which the page does not show to who may not decide."""
    page = http.get(f"/approvals/{approval}").text
    digest = re.search(r"<dt>Question</dt>\s*<dd class=\"mono\">\s*([0-9a-f]{64})", page)
    assert digest is not None
    return {"question": digest[1]}


def test_a_decision_is_on_the_digest_that_was_shown_and_on_no_other(shop: Dev, http: httpx.Client) -> None:
    first, second = asked(shop, http, "digest-1"), asked(shop, http, "digest-2")
    shown = form(http, first)
    for digest in ("", "0" * 64, form(http, second)["question"], shown["question"][:32]):
        refused = vote(http, first, {**shown, "question": digest}, action="approve")
        assert (refused.status_code, "is not the one that was shown" in text(refused)) == (409, True)
        assert "Nothing was sent" in text(refused)
    crossed = vote(http, second, shown, action="approve")
    assert (crossed.status_code, "Nothing was sent" in text(crossed)) == (409, True)
    assert http.get(f"/approvals/{first}/vote?action=approve").status_code == 422
    assert said(shop, first) == said(shop, second) == []


def test_a_client_that_does_not_compare_digests_is_seen(
    shop: Dev, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    approval = asked(shop, http, "planted-1")

    def on_another() -> None:
        with pytest.raises(ConflictError, match="is not the one that was shown"):
            connect(data=str(shop.data)).approvals.vote(approval, "approve", question="0" * 64, actor="ada")

    on_another()
    source = inspect.getsource(approvals)
    assert source.count("if subject.question != question:") == 1
    mutant = dict(vars(approvals))
    exec(source.replace("if subject.question != question:", "if False:"), mutant)
    mutant["_objection"] = lambda *_: ""  # the ballot itself would refuse it, too
    monkeypatch.setattr(approvals.Approvals, "vote", mutant["Approvals"].vote)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        on_another()


EOF = {"enable.partition.eof": True}


def ends(shop: Dev) -> dict[tuple[str, int], int]:
    """Where each partition of a topic of inputs, votes and dead letters ends."""
    consumer = Consumer({"bootstrap.servers": shop.state["kafka"], "group.id": "ends"})
    try:
        topics = consumer.list_topics(timeout=30).topics
        kinds = ("run-requested", "run-signalled", "run-operated", "approval-voted", "dead-letter")
        places = [
            TopicPartition(name, number)
            for name in topics
            if any(kind in name for kind in kinds)
            for number in topics[name].partitions
        ]
        return {(at.topic, at.partition): consumer.get_watermark_offsets(at)[1] for at in places}
    finally:
        consumer.close()


def written(shop: Dev, before: dict[tuple[str, int], int]) -> list[str]:
    """What was sent to these topics since they ended there: records with a value, as planners write tombstones too."""
    consumer, found = Consumer({"bootstrap.servers": shop.state["kafka"], "group.id": "written", **EOF}), list[str]()
    try:
        for (topic, number), end in ends(shop).items():
            begin = before.get((topic, number), 0)
            consumer.assign([TopicPartition(topic, number, begin)] if end > begin else [])
            while end > begin:
                record = consumer.poll(30)
                assert record is not None, (topic, number, begin, end)  # a tombstone is false
                if error := record.error():  # the records up to the end may be cleaned away by now
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    break
                begin = (record.offset() or 0) + 1
                if record.value() is not None:
                    found.append(f"{topic} {record.key()!r}")
        return found
    finally:
        consumer.close()


@pytest.mark.pages
def test_another_question_by_then_is_shown_beside_the_one_that_was_seen(shop: Dev, http: httpx.Client) -> None:
    approval = asked(shop, http, "up-1", to="up")
    shown = form(http, approval)
    later = eventually(lambda: (now := waits(shop, http, "up-1")) != approval and now, within=60, what="the escalation")
    refused = vote(http, approval, shown, action="approve", message="by the old page")
    page = text(refused)

    assert refused.status_code == 409
    for words in (
        "Nothing was sent",
        "What you saw",
        "What is",
        "Another question about the same call",
        "by the old page",
    ):
        assert words in page, words
    assert f'href="/approvals/{later}"' in refused.text
    assert "role:clerk, role:head" in page
    assert said(shop, str(later)) == []
    assert "replaced by another question" in text(http.get(f"/approvals/{approval}"))


def test_a_question_that_was_decided_meanwhile_is_told_and_nothing_is_sent(shop: Dev, http: httpx.Client) -> None:
    approval = asked(shop, http, "late-1")
    shown = form(http, approval)
    shop.refold("approval", "reject", approval, "--actor", "bob", "--message", "too dear")
    eventually(lambda: "decided: reject" in text(http.get(f"/approvals/{approval}")), within=60, what="the decision")
    refused = vote(http, approval, shown, action="approve")

    assert (refused.status_code, "Nothing was sent" in text(refused)) == (409, True)
    assert "decided: reject by bob" in text(refused)
    assert "too dear" in text(refused)
    assert said(shop, approval) == [("bob", "reject")]
    assert "bob rejected" in text(http.get("/runs/late-1"))


def test_a_question_that_has_expired_is_told_and_nothing_is_sent(shop: Dev, http: httpx.Client) -> None:
    approval = asked(shop, http, "soon-1", to="soon")
    shown = form(http, approval)
    eventually(lambda: "expired" in text(http.get(f"/approvals/{approval}")), within=60, what="the end")
    refused = vote(http, approval, shown, action="approve")

    assert (refused.status_code, "Nothing was sent" in text(refused)) == (409, True)
    assert "The question is expired" in text(refused)
    assert said(shop, approval) == []


def test_a_right_that_was_taken_away_counts_at_the_click(shop: Dev, http: httpx.Client) -> None:
    approval = asked(shop, http, "right-1")
    shown = form(http, approval)
    roles = shop.data / "roles.yaml"
    roles.write_text("roles: {clerk: [bob], head: [cleo]}\nrevoked: []\n")
    try:
        shop.refold("policy", "publish", "--roles", str(roles))
        refused = vote(http, approval, shown, action="approve")
    finally:
        shop.refold("policy", "publish", "--roles", str(SHOP / "roles.yaml"))

    assert (refused.status_code, "Nothing was sent" in text(refused)) == (409, True)
    assert "ada is none of role:clerk" in text(refused)
    assert "bob may decide" in text(refused)
    assert said(shop, approval) == []
    assert vote(http, approval, shown, action="approve").headers["location"] == "/runs/right-1"


@pytest.mark.pages
def test_all_that_leaves_a_question_open_leaves_it_open(shop: Dev, http: httpx.Client) -> None:
    approval = asked(shop, http, "open-1")
    shown = form(http, approval)
    for fields in (
        {"action": "comment", "message": "what is it for?"},
        {"action": "remind"},
        {"action": "delegate", "to": "dora"},
        {"action": "withdraw"},
        {"action": "reassign", "to": "dora, role:head"},
    ):
        sent = vote(http, approval, shown, **fields)
        assert (sent.status_code, sent.headers.get("location")) == (303, f"/approvals/{approval}"), text(sent)
    again = vote(http, approval, shown, action="remind")
    nobody = vote(http, approval, shown, action="reassign", to="*")
    page = text(http.get(f"/approvals/{approval}"))

    assert (again.status_code, "reminded of this question a moment ago" in text(again)) == (409, True)
    assert nobody.status_code in (409, 422)
    for words in (
        "ada says",
        "what is it for?",
        "ada reminds",
        "hands their word to dora",
        "asks instead dora, role:head",
    ):
        assert words in page, words
    assert [action for _, action in said(shop, approval)] == ["comment", "remind", "delegate", "withdraw", "reassign"]
    assert http.get("/api/runs/open-1").json()["status"] != "completed"


def test_an_answer_is_taken_in_the_place_of_the_tool(shop: Dev, http: httpx.Client) -> None:
    approval = asked(shop, http, "answer-1")
    assert vote(http, approval, form(http, approval), action="answer", result="{").status_code == 422
    shown = form(http, approval)
    vote(http, approval, shown, action="answer", result='"paid by hand"')

    assert ended(http, "answer-1")["result"] == "paid by hand"
    again = vote(http, approval, shown, action="answer", result='"paid by hand"')
    other = vote(http, approval, shown, action="answer", result='"paid twice"')
    assert "Nothing was sent" not in text(again), "a second click is no news"
    assert (other.status_code, "Nothing was sent" in text(other)) == (409, True)
    assert said(shop, approval) == [("ada", "answer")]


def test_one_of_two_counts_and_the_page_of_the_question_says_so(shop: Dev, http: httpx.Client) -> None:
    approval = asked(shop, http, "two-1", to="two")
    sent = vote(http, approval, form(http, approval), action="approve", message="fine by me")

    assert sent.headers["location"] == f"/approvals/{approval}"
    assert re.search(r"ada approves .* counts .*fine by me", text(http.get(f"/approvals/{approval}")))


@pytest.mark.pages
def test_several_are_decided_one_after_the_other_each_with_a_line_of_its_own(shop: Dev, http: httpx.Client) -> None:
    approvals = [asked(shop, http, f"many-{number}") for number in range(3)]
    chosen = http.post("/inbox", data={f"pick:{each}": "on" for each in approvals})
    fields = dict(re.findall(r'<input type="hidden" name="(pick:[^"]*)" value="([0-9a-f]{64})"', chosen.text))
    assert list(fields) == [f"pick:{each}" for each in approvals]
    assert "Nothing was sent so far" in text(chosen)
    shop.refold("approval", "reject", approvals[1], "--actor", "bob")
    came = text(http.post("/inbox", data={**fields, "action": "approve"}))

    assert "2 of 3 votes are in" in came
    assert len(re.findall("decided already: reject by bob. Nothing was sent.", came)) == 1
    assert [said(shop, each) for each in approvals] == [[("ada", "approve")], [("bob", "reject")], [("ada", "approve")]]
    votes = {shop.read("approval", "show", each)["said"][0]["vote"] for each in approvals}
    assert len(votes) == 3
    assert http.post("/inbox", data={"action": "approve"}).status_code == 422
    assert (
        http.post("/inbox", data={**dict.fromkeys(fields, "on"), "action": "approve"}).text.count("Nothing was sent")
        == 3
    )


def test_the_inbox_is_of_who_may_decide_those_first_that_expire(shop: Dev, http: httpx.Client) -> None:
    own, theirs = asked(shop, http, "mine-1"), asked(shop, http, "mine-2", amount=700)
    soon = asked(shop, http, "mine-3", to="up")
    mine, everything = http.get("/inbox").text, http.get("/inbox?show=all").text

    assert f'href="/approvals/{own}"' in mine
    row = mine[mine.index(f'href="/approvals/{theirs}"') :]
    assert mine.index("mine-1") < mine.index("mine-2")
    assert "Not for you (ada): it waits for a person of head" in re.sub("<[^>]*>", "", row)
    assert re.findall('formaction="/acting" name="person" value="([^"]*)"', row) == ["cleo"]
    assert f'name="pick:{own}"' in mine
    assert f'name="pick:{theirs}"' not in mine + everything
    assert f'href="/approvals/{theirs}"' in everything
    assert everything.index("mine-3") < everything.index("mine-1") < everything.index("mine-2"), soon
    shop.refold("approval", "reject", own, "--actor", "bob")
    eventually(lambda: "mine-1" in http.get("/inbox?show=decided").text, within=60, what="what is decided")
    assert "mine-3" not in http.get("/inbox?show=decided").text


def test_no_text_of_a_voter_or_a_model_becomes_part_of_a_page(shop: Dev, http: httpx.Client) -> None:
    hostile = "\n".join(text for text in CORPUS if text.isprintable() or "\u202e" in text)
    approval = asked(shop, http, "hostile-1", to=hostile)
    shown = form(http, approval)
    comment = vote(http, approval, shown, action="comment", message=hostile)
    edit = {"action": "edit", "args": json.dumps({"to": hostile[::-1], "amount": 1}), "message": hostile}
    pages = [
        http.get(comment.headers["location"]),
        vote(http, approval, shown, **edit),
        vote(http, approval, {"question": hostile}, action="approve", message=hostile),
        http.post("/inbox", data={f"pick:{approval}": hostile}),
        http.post("/inbox", data={f"pick:{approval}": hostile, "action": "reject", "message": hostile}),
        http.get("/inbox?show=all"),
    ]
    for number, found in enumerate(pages):
        tags = Tags(re.sub("<textarea.*?</textarea>", "", found.text, flags=re.DOTALL))
        assert ("onerror=window.ran=1" in tags.text) is (number != 4)
        assert "\u202e" not in tags.text
        assert {tag for tag, _ in tags.found} <= KNOWN_TAGS
        assert [tag for tag, _ in tags.found].count("script") == 1
        assert not [name for _, given in tags.found for name in given if name.startswith("on") or name == "style"]
    assert len(said(shop, approval)) == 1


def test_a_call_in_doubt_has_three_ways_out(shop: Dev, http: httpx.Client) -> None:
    hold = shop.data / "world/hold"
    hold.touch()
    shop.refold("run", "start", "poster", "--id", "doubt-1", "--input", '{"letter":"dear eve"}')
    eventually(lambda: (shop.data / "world/posted").exists(), within=60, what="the letter")
    shop.kill("executor")
    hold.unlink()
    page = eventually(
        lambda: "doubt-1" in (found := http.get("/inbox?show=doubt")).text and found, within=90, what="a doubt"
    )
    approval = waits(shop, http, "doubt-1")
    page = http.get("/inbox?show=doubt")

    for words in ("It happened", "It did not happen", "Give up", "The receiver's key: ", "1 of role:clerk"):
        assert words in text(page), words
    shown = form(http, approval)
    wrong = vote(http, approval, shown, action="approve")
    assert (wrong.status_code, "cannot approve: this approval asks for the outcome" in text(wrong)) == (409, True)
    other = http.post(f"/approvals/{approval}/outcome", data={"question": "0" * 64, "outcome": "give_up"})
    assert (other.status_code, "Nothing was sent" in text(other)) == (409, True)
    came = http.post(
        f"/approvals/{approval}/outcome", data={**shown, "outcome": "happened", "result": '"seen in the box"'}
    )
    assert came.status_code == 303, text(came)
    assert ended(http, "doubt-1")["result"] == "seen in the box"
    late = http.post(f"/approvals/{approval}/outcome", data={**shown, "outcome": "did_not_happen"})
    assert (late.status_code, "Nothing was sent" in text(late)) == (409, True)


# Last, as it takes what its actor may write in a minute.
def test_a_refused_request_sends_no_record(shop: Dev, http: httpx.Client) -> None:
    theirs, over = asked(shop, http, "refused-1", amount=600), asked(shop, http, "refused-2")
    vote(http, over, form(http, over), action="approve")
    ended(http, "refused-2")
    edit = {"action": "edit", "args": {"to": "eve", "amount": 5_000}}
    refused: dict[str, list[tuple[str, object]]] = {
        "/api/runs": [("", {"agent": 5}), ("", {"agent": "payer", "id": "a b"}), ("", [])],
        "/api/runs/{run}/fork": [("refused-2", {"at": 1}), ("nobody", {"at": 1})],
        "/api/runs/{run}/signals": [("nobody", {"name": "go"}), ("refused-2", {"name": "go"}), ("refused-1", {})],
        "/api/runs/{run}/updates/{name}": [("nobody", {"data": 1}), ("refused-2", {"data": 1}), ("refused-1", [])],
        "/api/callbacks/{token}": [("cb_nobody_x", {"data": 1}), ("refused-1", {"data": 1})],
        "/api/runs/{run}/cancel": [("refused-2", {}), ("nobody", {})],
        "/api/runs/{run}/pause": [("refused-2", {}), ("nobody", {})],
        "/api/runs/{run}/resume": [("refused-2", {}), ("nobody", {})],
        "/api/runs/{run}/notes": [("refused-2", {"note": "x"}), ("refused-1", {"note": 5})],
        "/api/runs/{run}/retry": [("refused-2", {}), ("refused-1", {})],
        "/api/runs/{run}/fail": [("refused-2", {}), ("refused-1", {})],
        "/api/runs/{run}/repair": [("refused-2", {}), ("refused-1", {"head": "zz"})],
        "/api/approvals/{approval}/votes": [
            *((theirs, {"action": action}) for action in ("approve", "reject")),
            (theirs, edit),
            (theirs, {"action": "answer", "result": 1}),
            (theirs, {"action": "approve", "args": {}}),
            (over, {"action": "approve"}),
            (theirs[:-20], {"action": "approve"}),
            ("nobody/3~" + "0" * 32, {"action": "approve"}),
        ],
        "/api/doubts/{call}/resolve": [(theirs, {"verdict": "happened"}), ("refused-1/3", {"verdict": "give_up"})],
        "/api/dead-letters/{place}/replay": [("dead-letter/0/99999", {}), ("x", {})],
        "/api/login": [("", {"key": "wrong"})],
        "/api/logout": [("", {"more": 1})],
    }
    document = routed().openapi()["paths"]
    assert refused.keys() == {path for path, methods in document.items() if "post" in methods}
    assert written(shop, {}), "what was accepted is seen"
    before, answered = ends(shop), dict[str, int]()
    for path, cases in refused.items():
        for name, body in cases:
            answer = http.post(re.sub(r"\{\w+\}", name, path), json=body)
            answered[f"{path} {name} {body}"] = answer.status_code
            if answer.status_code >= 400:
                assert written(shop, before) == [], (path, name, body, answer.text)
            before = ends(shop)

    votes = [status for path, status in answered.items() if "/votes" in path]
    assert all(status in (403, 404, 409, 422) for status in votes), answered
    assert said(shop, theirs) == []
