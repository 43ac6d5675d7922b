"""Pages out of a view in memory: what they say, and that no text of a run is more than text."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from refold.console.gateway.writing import WriteSide
from refold.console.pages import rendering
from refold.core.events import (
    AttemptFailed,
    CallbackCompleted,
    CallbackCreated,
    CallDispatched,
    CallFailed,
    CallProposed,
    Event,
    Failure,
    RunFailed,
    RunRequested,
    RunStarted,
    SignalAnswered,
    SignalReceived,
    SignalSent,
    StatusSet,
    WaitEnded,
    WaitStarted,
)
from refold.core.ids import RunId, hold_key, home
from refold.core.messages import Hold
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.archive.collecting import runs_of_log, whole_runs
from refold.engine.archive.store import ArchiveStore
from refold.engine.runtime.settings import GatewayPart
from tests.gateway.test_hostile import Heard
from tests.gateway.test_logins import Keys
from tests.gateway.test_reading import Bench
from tests.pages.hostile import CORPUS, HEAVY, hostile, nested, parent, reads, talk
from tests.projections.histories import NOW, Pair, asked, begun, call, entries, long

ALLOWED_SCRIPT = re.compile(r"/static/refold\.js\?[0-9a-f]{16}")

KNOWN_TAGS = frozenset(
    re.findall(
        r"\w+",
        """html head meta title link script body a svg defs pattern rect path circle text header nav span form label
        input main div h1 h2 section ol ul li b em br h3 code time dl dt dd small p pre details summary textarea button
        mark noscript output table caption thead tbody tr th td select option use g""",
    )
)


class Tags(HTMLParser):
    """Every element of a page with its attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    for number, text in enumerate(CORPUS):
        for key, value in (*hostile(f"open-{number}", text), *hostile(f"over-{number}", text, over=True)):
            bench.log.write(key, value)
    for key, value in long("sad"):
        bench.log.write(key, value)
    bench.catch_up()
    with bench.http:
        yield bench


def page(bench: Bench, path: str, status: int = 200) -> Tags:
    answer = bench.http.get(path)
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    return Tags(answer.text)


def test_no_text_of_a_run_becomes_part_of_a_page(bench: Bench) -> None:
    paths = [
        "/",
        "/inbox",
        *(f"/inbox?show={tab}" for tab in ("all", "doubt", "decided")),
        "/?text=" + "%3Cscript%3E",
        "/?agent=%22%3E%3Cscript%3E&session=%7B%7B7*7%7D%7D",
    ]
    for number in range(len(CORPUS)):
        paths += [f"/approvals/{state}-{number}/11~{4:032x}" for state in ("open", "over")]
        for run in (f"/runs/open-{number}", f"/runs/over-{number}"):
            paths += [run, f"{run}?show=events", f"{run}?show=conversation", f"{run}?at=4&with=9"]
            paths += [f"{run}?seq=1&seq=3&seq=6&seq=9&seq=12&seq=4", f"{run}?seq=13&seq=4"]  # a page opens six events
    for path in paths:
        check_text_alone(page(bench, path), path)


@pytest.mark.parametrize("value", HEAVY)
def test_values_that_are_large_or_deep_are_text_like_any_other(bench: Bench, value: str) -> None:
    for key, record in nested("heavy", HEAVY[value]):
        bench.log.write(key, record)
    bench.catch_up()
    shown = ("", "?show=events", "?show=conversation", "?open=all", "?at=3&with=9", "?at=1&with=12", "?at=7")
    for path in (*shown, *("?" + "&".join(f"seq={seq}" for seq in range(n, n + 5)) for n in (1, 6, 11))):
        found = page(bench, f"/runs/heavy{path}")
        check_text_alone(found, path)
        assert max(map(len, found.text.split()), default=0) < 20_000, path
    check_text_alone(page(bench, f"/approvals/heavy/6~{2:032x}"), value)
    for path in ("", "/events", "/steps", "/audit", "/family", "/steps/1/messages", "/diff/1/9"):
        assert bench.http.get(f"/api/runs/heavy{path}").status_code in (200, 422), path


def check_text_alone(found: Tags, path: str) -> None:
    """Fails for an element, a script, a handler or a link that no page of ours has."""
    assert {tag for tag, _ in found.found} <= KNOWN_TAGS, path
    assert [tag for tag, _ in found.found].count("script") == 1
    for tag, attributes in found.found:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (path, attributes)
        if tag == "script":
            assert ALLOWED_SCRIPT.fullmatch(attributes["src"] or "")
        for name in ("href", "action", "src"):
            assert re.match(r"[/?#](?!/)|data:,$", attributes.get(name) or "/"), (path, attributes)


@pytest.mark.parametrize("path", ["/runs/open-7", "/runs/open-8", "/runs/open-9", "/runs/open-7?seq=4"])
def test_what_is_not_seen_or_mistaken_is_spelt_out(bench: Bench, path: str) -> None:
    text = page(bench, path).text
    assert not re.search("[\u202e\u200b\u00ad\x1b\x07\x00]", text)
    assert "<U+" in text or "letters>" in text


def test_a_run_says_what_it_does_and_what_will_happen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page(bench, "/runs/open-0").text
    assert "Pause" not in text
    assert "Nothing can be started, decided or changed now: Kafka does not answer the gateway." in text
    monkeypatch.setattr(WriteSide, "listens", True)
    text = page(bench, "/runs/open-0").text
    assert "Nothing can be started" not in text
    assert "Approval needed" in text
    assert "nobody tries again: people are asked for the outcome" in text
    assert "Pause" in text

    over = page(bench, "/runs/over-0").text
    assert "not sent" in over
    assert "shop failed at step" in over
    assert "Approval needed" not in over


def test_a_state_in_the_past_dims_what_was_not_yet(bench: Bench) -> None:
    html = bench.http.get("/runs/sad?at=5").text
    assert 'class="row off"' in html
    assert 'class="row"' in html
    assert "event 5 of" in Tags(html).text
    assert page(bench, "/runs/sad?at=99999").text.count("event 2")


def test_a_part_of_a_page_has_its_state_and_its_panels_without_its_rows(bench: Bench) -> None:
    whole, part = (Tags(bench.http.get(f"/runs/over-0?at=9&seq=6{more}").text) for more in ("", "&part=true"))
    ids = [{of["id"] for _, of in found.found if of.get("id")} for found in (whole, part)]
    assert {"travel", "panels", "shows", "event-6", "head"} <= ids[1] <= ids[0]
    assert {"rows", "axis", "facts"} <= ids[0] - ids[1]
    talk = bench.http.get("/runs/over-0?at=9&show=conversation&part=true").text
    assert 'id="rows"' in talk  # what was said depends on the event


def test_several_events_are_open_each_with_its_causes_and_its_record(bench: Bench) -> None:
    found = page(bench, "/runs/over-0?seq=6&seq=4&seq=4&seq=99999&at=9&with=3")
    sections = [of["id"] for tag, of in found.found if tag == "section" and "panel" in (of.get("class") or "")]
    assert sections == ["diff", "event-6", "event-4"]
    closed = [of["href"] for tag, of in found.found if of.get("aria-label") == "close event 6"]
    assert closed == ["?at=9&seq=4&with=3"]
    assert "kcat -b" in found.text
    assert "refold run show over-0 --at 6" in found.text
    assert "run-log version" in found.text

    raw = bench.http.get("/runs/over-0/records/6")
    assert raw.headers["content-disposition"].startswith("attachment")
    assert hashlib.sha256(raw.content).hexdigest() in found.text
    assert bench.http.get("/runs/over-0/records/99").status_code == 404


def test_causes_lead_back_to_the_request(bench: Bench) -> None:
    text = page(bench, "/runs/sad?seq=20").text
    chain = [int(seq) for seq in re.findall(r"event (\d+) · ", text)]
    assert chain == sorted(chain, reverse=True)
    assert chain[-1] == 1
    assert "by ann" in text.partition("Why: back to the request")[2]


def test_why_stands_beside_every_effect_and_the_bundle_on_the_page(bench: Bench) -> None:
    reads = [replace(each, effect="pure") if isinstance(each, CallProposed) else each for each in call(2)]
    for key, value in entries("acts", begun(), call(1), reads, call(3)):
        bench.log.write(key, value)
    bench.catch_up()
    found = page(bench, "/runs/acts").found
    links = [of for tag, of in found if tag == "a" and of.get("class") == "why"]
    assert [of["href"] for of in links] == ["?seq=3#cause-3", "?seq=7#cause-7"]
    assert [of["aria-label"] for of in links] == ["Why pay, event 3", "Why pay, event 7"]
    assert "/api/runs/acts/bundle" in [of.get("href") for _, of in found]
    panel = page(bench, "/runs/acts?seq=7")
    assert {"cause-7"} <= {of.get("id") for _, of in panel.found}
    assert "/api/runs/acts/bundle?seq=7" in [of.get("href") for _, of in panel.found]


def test_a_signal_of_another_run_leads_to_the_step_that_sent_it_and_a_forged_one_to_none(bench: Bench) -> None:
    told = [SignalReceived("teller/2", "go", "1"), SignalReceived("teller/1", "go", "2")]
    runs = entries("teller", begun(), [*call(1)], [SignalSent(2, "told", "go", "1")]), entries("told", begun(), told)
    for key, value in (pair for run in runs for pair in run):
        bench.log.write(key, value)
    bench.catch_up()
    why = page(bench, "/runs/told?seq=3")
    assert "teller, event 5 · Signal sent" in why.text.partition("Why: back to the request")[2]
    assert any((of.get("href") or "").startswith("/runs/teller?seq=5") for _, of in why.found)
    forged = entries("forged", begun(), [SignalReceived(f"teller/{step}", "go", "2") for step in (1, 2)])
    for key, value in forged:
        bench.log.write(key, value)
    bench.catch_up()
    assert not any("teller" in (of.get("href") or "") for _, of in page(bench, "/runs/forged?seq=4").found)


def test_a_conversation_says_each_thing_once_and_if_it_is_proven(bench: Bench) -> None:
    for key, value in talk("talk"):
        bench.log.write(key, value)
    bench.catch_up()
    text = page(bench, "/runs/talk?show=conversation").text
    order = ["You are calm.", "What is up?", "Let me look.", "approved look", "Good.", "All is well.", "Bye."]
    places = [text.index(each) for each in order]
    assert places == sorted(places)
    assert [text.count(each) for each in order] == [1] * len(order)
    assert "not proven" not in text
    seen = page(bench, "/runs/talk?seq=9").text
    assert "and its digest" in seen
    assert "What is up?" in seen

    for key, value in talk("liar", digest="0" * 32):
        bench.log.write(key, value)
    bench.catch_up()
    assert "not proven: the request is not what its arguments say" in page(bench, "/runs/liar?show=conversation").text
    assert "Not proven: " in page(bench, "/runs/liar?seq=9").text
    assert "No model was asked" in page(bench, "/runs/run-1?show=conversation").text


def rows_of(bench: Bench, path: str) -> list[str]:
    html = bench.http.get(path).text
    shown = html.partition('id="rows">')[2].partition("</ol>")[0]
    return [" ".join(Tags(part).text.split()) for part in shown.split("<li")[1:]]


def test_reads_become_a_count_and_nothing_remarkable_does(bench: Bench) -> None:
    for key, value in reads("reads"):
        bench.log.write(key, value)
    bench.catch_up()

    rows = rows_of(bench, "/runs/reads")
    counted = [row for row in rows if "show them" in row]
    assert len(counted) == 2
    assert "7 reads" in counted[0]
    assert "1 request to a model, 6 reads" in counted[1]
    assert sum("look" in row for row in rows) == 3  # one failed, one was tried twice, one is open
    assert any("2 tries" in row for row in rows)

    opened = rows_of(bench, "/runs/reads?open=all")
    assert len(opened) == 17
    assert len(rows_of(bench, "/runs/reads?open=3")) == len(rows) + 6
    assert len(rows_of(bench, "/runs/reads?seq=6")) == len(rows) + 6  # an event that is open is not hidden in a count


def test_attempts_lie_above_each_other(bench: Bench) -> None:
    for key, value in reads("reads"):
        bench.log.write(key, value)
    bench.catch_up()
    html = bench.http.get("/runs/reads").text
    row = next(part for part in html.split("<li") if "2 tries" in part)
    bars = re.findall(r'<rect class="(\w+)" x="[\d.]+" width="[\d.]+" y="([\d.]+)"', row)
    assert [kind for kind, _ in bars] == ["bad", "tool"]
    assert bars[0][1] != bars[1][1]


def test_runs_below_are_in_place_to_any_depth(bench: Bench) -> None:
    for run in ("top", "top.1", "top.1.1"):
        for key, value in parent(run, below=run.count(".") < 2):
            bench.log.write(key, value)
    bench.catch_up()
    assert [row for row in rows_of(bench, "/runs/top") if "show steps" in row]
    assert not [row for row in rows_of(bench, "/runs/top") if "top.1.1" in row]
    one = rows_of(bench, "/runs/top?open=top.1")
    assert [row for row in one if "top.1.1" in row and "completed" in row]
    assert [row for row in rows_of(bench, "/runs/top?open=top.1&open=top.1.1") if "pay" in row]
    assert "Runs below" in page(bench, "/runs/top").text
    assert "all over in the family" in page(bench, "/runs/top").text


def test_a_stalled_run_says_what_it_needs_and_the_commands(bench: Bench) -> None:
    for key, value in reads("reads"):
        bench.log.write(key, value)
    run = RunId("reads")
    hold = Hold(
        run, "stalled", "non_determinism", "step 2 is <b>another</b>", needs="v7", code="v8", member="planner-9"
    )
    bench.log.append(RUN_SNAPSHOT, home(run, 2), hold_key(run), codec.encode(hold))
    bench.catch_up()
    text = page(bench, "/runs/reads").text
    for said in (
        "v7",
        "planner-9, which has",
        "v8",
        "refold run retry reads",
        "refold run cancel reads --as-failed",
        "<b>another</b>",
    ):
        assert said in text
    assert "no planner reports to have a version of shop" in text
    assert "stalled" in text
    for path in ("/", "/?state=stalled"):
        row = bench.http.get(path).text.partition('href="/runs/reads"')[2].partition("</a>")[0]
        assert '<span class="pill stalled">stalled</span>' in row, path


def test_a_question_is_not_shown_in_the_past(bench: Bench) -> None:
    assert "Approval needed" not in page(bench, "/runs/open-0?at=9").text
    assert "By now people are asked" in page(bench, "/runs/open-0?at=9").text


def test_a_view_that_is_behind_says_for_how_long(bench: Bench) -> None:
    ends = bench.gateway.writing._refusals.ends
    ends.append((time.monotonic() - 90.0, {(RUN_LOG, 0): 1}))  # the view has this
    assert "s behind" not in page(bench, "/runs/sad").text
    ends.append((time.monotonic() - 3.5, {(RUN_LOG, 0): 10**6}))
    assert "3 s behind" in page(bench, "/runs/sad").text


def test_the_page_of_an_archived_run_is_read_from_the_archive(tmp_path: Path) -> None:
    bench, archive_store = Bench(archive=tmp_path.as_uri()), ArchiveStore(tmp_path.as_uri())
    for number in range(bench.log.number):
        files = archive_store.keep(whole_runs(bench.log, number, runs_of_log(bench.log, number).ended))
        if "run-3" in files:
            bench.log.mark("run-3", file=files[RunId("run-3")])
    with bench.http:
        before = rows_of(bench, "/runs/run-3?seq=2")
        bench.log.bury("run-3")
        bench.catch_up()
        assert rows_of(bench, "/runs/run-3?seq=2") == before
        assert bench.http.get("/runs/run-3").headers["Refold-Archive"].endswith(".avro")


def test_errors_of_pages_are_pages_and_those_of_the_api_are_problems(bench: Bench) -> None:
    assert "there is no run none" in page(bench, "/runs/none", 404).text
    assert "is not a run id" in page(bench, "/runs/no%20id", 422).text
    bench.log.mark("sad")
    bench.log.bury("sad")
    bench.catch_up()
    assert "was erased" in page(bench, "/runs/sad", 410).text
    assert bench.http.get("/api/runs/none").headers["content-type"] == "application/problem+json"


def test_forms_of_other_sites_write_nothing(bench: Bench) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    question = "/approvals/open-0/11~00000000000000000000000000000004"
    for path in ("/runs/open-0/cancel", f"{question}/vote", f"{question}/outcome", "/inbox"):
        for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
            assert bench.http.post(path, content="reason=x", headers=form | headers).status_code == 403, path
        assert bench.http.get(path).status_code in (404, 405, 422) or path == "/inbox"
    assert bench.http.post("/api/runs", content="agent=x", headers=form).status_code == 415


def test_files_are_asked_for_once(bench: Bench) -> None:
    html = bench.http.get("/").text
    for url in re.findall(r"/static/[^\"]+", html):
        first = bench.http.get(url)
        assert "immutable" in first.headers["cache-control"]
        assert bench.http.get(url, headers={"if-none-match": first.headers["etag"]}).status_code == 304
    assert bench.http.get("/static/../pyproject.toml").status_code == 404
    assert bench.http.get("/static/nothing.css").status_code == 404


def test_pages_are_compressed_but_for_what_other_sites_ask_with_a_cookie(bench: Bench) -> None:
    def coded(path: str, **headers: str) -> str:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return str(bench.http.get(path, headers=sent).headers.get("content-encoding", "none"))

    assert coded("/") == coded("/static/refold.css") == "gzip"
    assert coded("/", accept_encoding="identity") == "none"
    assert coded("/api/runs") == "none"


def test_a_form_with_a_cookie_needs_what_its_page_had(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "api.json")
    token = keys.new("ada", "admin")
    bench = Bench(Heard, GatewayPart(api_keys=str(keys.path)))
    form = {"content-type": "application/x-www-form-urlencoded", "origin": "http://127.0.0.1:8321"}
    with bench.http as http:
        assert http.get("/", follow_redirects=False).headers["location"] == "/login"
        assert page(bench, "/login").text.count("API key or token") == 1
        assert http.post("/login", content="key=rfk_none", headers=form, follow_redirects=False).status_code == 401
        entered = http.post("/login", content=f"key={token}", headers=form, follow_redirects=False)
        assert entered.headers["location"] == "/"
        cookie = entered.headers["set-cookie"].partition(";")[0]
        sent = form | {"cookie": cookie}

        for site, coded in (("cross-site", None), ("same-site", None), (None, None), ("none", "gzip")):
            asked = sent | ({"sec-fetch-site": site} if site else {})
            assert http.get("/", headers=asked).headers.get("content-encoding") == coded, site
        csrf = re.search(r'name="csrf" value="([0-9a-f]{64})"', http.get("/runs/run-1", headers=sent).text)
        assert csrf is not None
        for path in ("/runs/run-1/cancel", "/approvals/run-1~1/vote", "/approvals/run-1~1/outcome", "/logout"):
            for body in ("", "csrf=", f"csrf={'0' * 64}"):
                assert http.post(path, content=body, headers=sent, follow_redirects=False).status_code == 403, path
            without = {name: value for name, value in sent.items() if name != "origin"}
            proven = f"csrf={csrf[1]}"
            if path != "/logout":
                assert http.post(path, content=proven, headers=without, follow_redirects=False).status_code == 403
                assert http.post(path, content=proven, headers=sent, follow_redirects=False).status_code in (409, 422)
        assert http.post("/logout", content=f"csrf={csrf[1]}", headers=sent, follow_redirects=False).status_code == 303


def test_the_inbox_goes_on_after_200_questions(bench: Bench) -> None:
    for number in range(205):
        for key, value in entries(f"many-{number}", [*begun(), call(1)[0], asked(1)]):
            bench.log.write(key, value)
    bench.catch_up()
    html, found = bench.http.get("/inbox?show=all").text, list[str]()
    for _ in range(2):
        rows = re.findall(r'href="(/approvals/[^"]+)"', html)
        found += rows
        more = re.search(r'href="(/inbox\?show=all&amp;cursor=[^"]+)"', html)
        html = bench.http.get(more[1].replace("&amp;", "&")).text if more else ""
    assert len(found) == len(set(found)) == 205 + len(CORPUS)
    assert not html
    assert bench.http.get("/inbox?show=all&cursor=x").status_code == 422
    assert bench.http.get("/inbox?show=none").status_code == 422


def test_whose_questions_they_are_is_told_once_kafka_is_there_again(bench: Bench) -> None:
    text = page(bench, "/inbox").text
    assert "Kafka is away, so nobody can decide now: these are all questions" in text
    assert "who may decide is not known now" in page(bench, f"/approvals/open-0/11~{4:032x}").text
    assert "decided: reject" in page(bench, f"/approvals/over-0/11~{4:032x}").text
    form = {"content-type": "application/x-www-form-urlencoded"}
    sent = bench.http.post(f"/approvals/open-0/11~{4:032x}/vote", content="action=approve&question=x", headers=form)
    assert sent.status_code == 503
    assert "CurrentAttempt again" not in sent.text


def test_a_doubt_without_a_question_is_settled_by_operators_and_one_with_it_by_approvers(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "api.json")
    tokens = {role: keys.new("ada", role) for role in ("viewer", "operator", "approver")}
    bench = Bench(Heard, GatewayPart(api_keys=str(keys.path)))
    with bench.http as http:
        for name, may in (("run-1/3", "operator"), (f"run-1/3~{3:032x}", "approver")):
            for role, token in tokens.items():
                sent = {"authorization": f"Bearer {token}", "content-type": "application/x-www-form-urlencoded"}
                answer = http.post(f"/approvals/{name}/outcome", content="outcome=give_up", headers=sent)
                assert (answer.status_code == 403) is (role != may), (name, role, answer.text)
                assert ("Nothing was sent" in answer.text) is (answer.status_code in (403, 409))


def failing(run: str, *end: Event) -> list[Pair]:
    """A run of a call that fails twice, and then for good."""
    request = RunRequested("shop", '{"item":"tea","cents":900}', "d", "s", "ann")
    retried = [Failure("net", f"no answer {n}", f"shop.py:{n} in pay") for n in (7, 8)]
    given_up = Failure("declined", "no money\nleft", "shop.py:41 in pay\nshop.py:30 in order")
    return entries(
        run,
        [request, RunStarted("1", "app"), *call(1)],
        [AttemptFailed(1, 1, retried[0], unknown=False, retry_ms=0), CallDispatched(1, 2, NOW)],
        [AttemptFailed(1, 2, retried[1], unknown=False, retry_ms=0), CallDispatched(1, 3, NOW)],
        [CallFailed(1, 3, given_up), *end],
    )


def test_a_failed_run_shows_its_error_first_and_whole_beside_its_input(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WriteSide, "listens", True)
    failure = Failure("declined", "tool pay failed: no money\nleft", "app.py:12 in shop")
    for key, value in failing("sold", RunFailed(failure)):
        bench.log.write(key, value)
    bench.catch_up()

    text = page(bench, "/runs/sold").text
    words = " ".join(text.split())

    assert "shop failed at step 1, pay" in words
    assert "Errordeclined tool pay failed: no money left shop.py:41 in pay" in words
    assert "3 lines of your codeshop.py:41 in pay shop.py:30 in order app.py:12 in shop" in words
    assert re.search(r"3 attempts of step 1 in \d+ ms", words)
    assert "net no answer 7 shop.py:7 in pay" in words
    assert "net no answer 8 shop.py:8 in pay" in words
    assert words.index("Error") < words.index("Input") < words.index("itemtea") < words.index("Timeline")
    first = re.search(r'class="actions">\s*<a class="btn go" href="([^"]+)">([^<]+)', bench.http.get("/runs/sold").text)
    assert first is not None
    assert first.groups() == ("/runs/sold?do=retry#do", "Try again from step 1…")
    assert "End" not in words.partition("Timeline")[2]


def test_a_failed_child_leads_to_the_run_that_can_be_retried(bench: Bench) -> None:
    for key, value in failing("mail.2", RunFailed(Failure("declined", "no"))):
        bench.log.write(key, value)
    bench.catch_up()

    shown = page(bench, "/runs/mail.2")

    assert "Show mail, which has this failure at step 2" in " ".join(shown.text.split())
    assert not [of for _, of in shown.found if "do=retry" in str(of.get("href"))]


def test_a_finished_run_shows_its_result_and_input_above_its_timeline(bench: Bench) -> None:
    words = " ".join(page(bench, "/runs/sad").text.split())

    assert "shop ended well" in words
    assert words.index("Result") < words.index("Input") < words.index("Timeline")
    assert "tokens, $0" not in words


@pytest.mark.parametrize(
    ("kind", "reason", "way"),
    [
        ("quarantined", "hang", "so only an operator lets it run again"),
        ("stalled", "mismatch", "goes on by itself once a planner has code that agrees"),
        ("stalled", "unknown_agent", "goes on once one serves it; if the name is wrong, cancel the run"),
    ],
)
def test_a_held_run_shows_all_of_the_reason_and_the_way_out(bench: Bench, kind: str, reason: str, way: str) -> None:
    long_reason = f"{'why ' * 400}and the end of it"
    for key, value in failing("held"):
        bench.log.write(key, value)
    hold = Hold(RunId("held"), kind, reason, long_reason, 'File "shop.py", line 3, in order')
    bench.log.append(RUN_SNAPSHOT, home(RunId("held"), 2), hold_key(RunId("held")), codec.encode(hold))
    bench.catch_up()

    words = " ".join(page(bench, "/runs/held").text.split())

    assert "and the end of it" in words
    assert way in words
    assert ("goes on by itself" in words) == (kind == "stalled" and reason != "unknown_agent")
    assert "refold run retry held" in words
    assert 'File "shop.py", line 3, in order' in words
    assert f'class="pill {kind}">{kind}<' in bench.http.get("/runs/held").text


def test_an_answer_is_a_step_of_the_timeline_with_its_value(bench: Bench) -> None:
    taken: list[Event] = [WaitStarted(1, "add"), SignalReceived("u-1", "add", "1"), WaitEnded(1, "u-1")]
    refused = SignalAnswered(3, "u-2", "null", Failure("ValueError", "<b>sold out"))
    for key, value in entries("asked", begun(), [*taken, SignalAnswered(2, "u-1", '{"left":41}'), refused]):
        bench.log.write(key, value)
    bench.catch_up()

    html = bench.http.get("/runs/asked?seq=7").text

    assert html.count("u-1") > 1
    assert "&#34;left&#34;: 41" in bench.http.get("/runs/asked?seq=6").text
    assert "&lt;b&gt;sold out" in html
    assert "<b>sold out" not in html


def test_exposed_values_are_shown_as_they_are_and_as_they_were(bench: Bench) -> None:
    shown = [StatusSet("asks"), StatusSet('{"pen":1}', "cart")], [StatusSet('{"<b>pen":2}', "cart")]
    for key, value in [*entries("shown", begun(), *shown), *entries("plain", begun(), [StatusSet("asks")])]:
        bench.log.write(key, value)
    bench.catch_up()

    def values(path: str) -> str:
        return bench.http.get(path).text.partition('id="values"')[2].partition("</section>")[0]

    assert "&#34;&lt;b&gt;pen&#34;: 2" in values("/runs/shown")
    assert "&#34;pen&#34;: 1" in values("/runs/shown?at=4")
    assert "pen" not in values("/runs/shown?at=3")
    assert values("/runs/plain") == ""


def test_a_timeline_begins_with_the_first_step_and_each_bar_has_a_colour_and_a_word(bench: Bench) -> None:
    before = [[StatusSet("early")] for _ in range(50)]
    steps: list[Event] = [RunStarted("1", "app"), CallbackCreated(1, "paid", "d", "{}", NOW)]
    for key, value in entries("late", begun()[:1], *before, steps, [CallbackCompleted(1, "1")]):
        bench.log.write(key, value)
    bench.catch_up()

    html = bench.http.get("/runs/late").text

    assert 'class="people" x="0.0"' in html
    css = Path(rendering.__file__).with_name("static").joinpath("refold.css").read_text()
    for kind in ("model", "tool", "child", "people", "wait", "note", "bad"):
        assert f".bar rect.{kind} {{ fill:" in css
        assert f'<rect class="{kind}" x="0" y="1"' in html, "it is in the legend"


def test_the_list_of_runs_has_the_agent_its_input_and_when_it_began(bench: Bench) -> None:
    for key, value in failing("sold-2"):
        bench.log.write(key, value)
    bench.catch_up()

    row = bench.http.get("/?text=sold-2").text.partition('href="/runs/sold-2"')[2].partition("</a>")[0]
    words = " ".join(re.sub(r"<[^>]+>", " ", row).replace("&#34;", '"').split())

    assert words.startswith('> running shop {"item":"tea","cents":900} 1 of 1 steps ')
    assert re.search(r" [\d,]+ d ago \d+ d \d+ h sold-2$", words)
    assert re.search(r'<time datetime="2023-11-14T22:13:2\d', row)
    assert 'title="2023-11-14 22:13:' in row
    assert "tokens" not in row
    assert "$" not in row
