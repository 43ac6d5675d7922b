"""Screens beside the run page, out of a view in memory: what they say, for whom, and with hostile text everywhere."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi.responses import HTMLResponse
from hypothesis import given
from hypothesis import strategies as st

from refold.client.operations.runs import STATES, STATUSES
from refold.client.policies import load_text
from refold.console.gateway import roles
from refold.console.gateway.app import build_api
from refold.console.gateway.guard import is_page
from refold.console.pages import rendering
from refold.console.pages.screen import BAR_HEIGHT, bars_of, url
from refold.core.errors import MalformedError
from refold.core.events import CallProposed, RetryPolicy, RunCancelled, RunPaused, RunRequested, RunStarted, Spendable
from refold.core.ids import RunId, hold_key, home
from refold.core.messages import DeadLetter, Hold, WindowSpent
from refold.core.topics import BUDGET_SPENT, DEAD_LETTER, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.runtime.settings import GatewayPart
from tests.gateway.test_hostile import Heard
from tests.gateway.test_logins import Keys, bearer
from tests.gateway.test_reading import Bench
from tests.gateway.test_roles import routes_of
from tests.pages.browser import SCREENS as TAKEN
from tests.pages.hostile import CORPUS, hostile
from tests.pages.test_pages import Tags, check_text_alone, page
from tests.projections import histories

SCREENS = ("/", "/sessions", "/tools", "/schedules", "/limits", "/operators", "/dead-letters")
"""Pages out of the view alone."""
FROM_KAFKA = ("/versions", "/policies", "/start", "/dead-letters/0/0")


def of_people(run: str, text: str) -> list[histories.Pair]:
    """A run in a session of this name, which somebody has paused and cancelled with these words, and which repeats."""
    request = RunRequested("shop", "{}", "d", "s", text, labels={text[:40] or "x": text}, sessions=[text[:200]])
    calls = [CallProposed(n, text[:60], "{}", f"k{n}", "default", "pure", 1_000, RetryPolicy()) for n in (1, 2, 3)]
    return histories.entries(run, [request, RunStarted(text[:60], "app"), *calls], [RunPaused(text, text)],
                             [RunCancelled(text, text)])  # fmt: skip


def write_beside(bench: Bench, number: int, text: str) -> None:
    """What services write beside the run log, with this text in every field."""
    letter = DeadLetter("run-signalled", 0, number, text[:80], text, text.encode("utf-8", "replace"), b"v", text, 1)
    bench.log.append(DEAD_LETTER, 0, f"open-{number}/s".encode(), codec.encode(letter))
    spent = WindowSpent("2026-11", text[:80], text[:80], text[:80], 0, number, 90, 7, 1, Spendable(100), "planner-1")
    bench.log.append(BUDGET_SPENT, 0, f"m/{number}".encode(), codec.encode(spent))
    run = RunId(f"open-{number}")
    hold = Hold(run, "stalled", text[:80], text)
    bench.log.append(RUN_SNAPSHOT, home(run, 2), hold_key(run), codec.encode(hold))


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(histories, "NOW", int(time.time() * 1000) - 60_000)
        bench = Bench()
        for number, text in enumerate(CORPUS):
            pairs = [*hostile(f"open-{number}", text), *hostile(f"over-{number}", text, over=True)]
            for key, value in (*pairs, *of_people(f"told-{number}", text)):
                bench.log.write(key, value)
            if "\ud800" not in text:  # the codec of records beside the log refuses it
                write_beside(bench, number, text)
        bench.catch_up()
        with bench.http:
            yield bench


def emptied() -> Bench:
    """A gateway on a log without a record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bench, "catch_up", lambda bench: None)
        bench = Bench()
        bench.log.lists = {place: [] for place in bench.log.lists}
        bench.log.ends = dict.fromkeys(bench.log.lists, 0)
    bench.catch_up()
    return bench


@pytest.fixture(scope="module")
def empty() -> Iterator[Bench]:
    bench = emptied()
    with bench.http:
        yield bench


def linked(found: Tags, begins: str) -> list[str]:
    return [str(of["href"]) for tag, of in found.found if tag == "a" and str(of.get("href")).startswith(begins)]


def test_no_text_of_anybody_becomes_part_of_a_screen(bench: Bench) -> None:
    for path in (*SCREENS, "/workers", "/tools?days=90", "/tools?agent=shop", "/sessions?session=s-1", *FROM_KAFKA):
        found = page(bench, path, 503 if path in FROM_KAFKA else 200)
        check_text_alone(found, path)
        assert not re.search("[\u202e\u200b\u00ad\x1b\x07\x00]", found.text), path
        inner = [link for link in linked(found, "/") if link.startswith(("/?", "/sessions?", "/tools?", "/operators?"))]
        for link in dict.fromkeys(inner):
            check_text_alone(page(bench, link.replace("\n", "%0A")), link)


def test_a_session_is_found_whatever_its_name(bench: Bench) -> None:
    links = linked(page(bench, "/sessions"), "/sessions?session=")

    assert len(links) >= len(CORPUS)
    for link in links:
        assert linked(page(bench, link), "/runs/")
    assert url("/sessions", session="../..") == "/sessions?session=..%2F.."


def test_empty_screens_say_what_would_be_here_and_how_it_comes(empty: Bench) -> None:
    for path, command in (
        ("/", "refold run start"),
        ("/sessions", "refold run start AGENT --session"),
        ("/tools", "refold run start"),
        ("/limits", "a limit that its agent declares"),
        ("/operators", "refold run pause"),
        ("/dead-letters", "refold deadletter list"),
        ("/inbox", "Nobody is asked for anything"),
    ):
        assert command in page(empty, path).text, path
    assert "No run matches" in page(empty, "/?state=failed").text


def rows_without_word(html: str) -> list[str]:
    """Rows of lists of runs that no word says the status of, for whoever does not see its colour."""
    rows = re.findall(r'<a class="fam[^"]*".*?</a>|<tr role="row">\s*<td.*?</tr>', html, re.DOTALL)
    assert rows
    return [row for row in rows if not re.search(r'<span class="pill [a-z_]+">\s*[a-z][a-z ]+</span>', row)]


def test_every_row_says_its_status_in_a_word(bench: Bench) -> None:
    for path in ("/", "/?state=failed", "/sessions", "/sessions?session=s-1"):
        html = bench.http.get(path).text
        assert not rows_without_word(html), path
        planted = re.sub(r'(<span class="pill [a-z]+">)[^<]+', r"\1", html, count=1)
        assert len(rows_without_word(planted)) == 1


def test_counts_are_those_of_the_lists_behind_them(bench: Bench) -> None:
    for query in ("", "agent=shop", "text=over", "session=s-1", "tool=edit", "label=team=none"):
        shown = page(bench, f"/?{query}&state=pending" if query else "/?state=pending")
        for link in linked(shown, "/?"):
            if "state=" in link:
                word = re.search(rf'href="{re.escape(link)}"[^>]*>[^<]*<b>([\d,]+)', bench.http.get(
                    f"/?{query}&state=pending" if query else "/?state=pending").text.replace("&amp;", "&"))  # fmt: skip
                assert word is not None
                listed = bench.http.get(link).text.count('<a class="fam run"')
                assert listed == int(word[1].replace(",", "")), link


def test_each_run_stands_under_one_status_and_none_of_those_has_no_run(bench: Bench) -> None:
    chips = linked(page(bench, "/"), "/?state=")
    under = [re.findall(r'<a class="fam run" href="/runs/([^"]+)"', bench.http.get(link).text) for link in chips]
    listed = [run["run_id"] for run in bench.get("/api/runs?limit=500")["runs"]]

    assert all(under)
    assert sorted(run for some in under for run in some) == sorted(listed)
    assert "/?state=running" not in chips, "what runs here is stalled, asks people, or is over"


def test_runs_are_found_by_tool_and_code(bench: Bench) -> None:
    def ids(query: str) -> set[str]:
        return {run["run_id"].split("-")[0] for run in bench.get(f"/api/runs?limit=500&{query}")["runs"]}

    assert ids("tool=edit") == {"open", "over"}
    assert ids("tool=edit&code=declined") == {"open", "over"}
    assert ids("code=declined") == {"over"}
    assert ids("tool=none") == ids("code=none") == set()


def test_sums_of_tools_are_those_of_the_api(bench: Bench) -> None:
    text = re.sub(r"\s+", " ", page(bench, "/tools").text)
    day = bench.get("/api/daily?agent=shop&tool=edit")

    assert sum(row["calls"] for row in day) == 2 * len(CORPUS)
    assert re.search(rf"edit shop {2 * len(CORPUS)} ?{2 * len(CORPUS)} {2 * len(CORPUS)} declined", text), text[-4000:]
    by_day = re.sub(r"\s+", " ", page(bench, "/tools?agent=shop&tool=edit").text)
    assert re.search(rf"Avoided ?{day[0]['day']} ?{2 * len(CORPUS)}", by_day)


def test_a_page_that_has_not_changed_is_not_sent_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "api.json")
    ada, bob = keys.new("ada", "viewer"), keys.new("bob", "viewer")
    bench = Bench(Heard, GatewayPart(api_keys=str(keys.path)))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    with bench.http as http:

        def ask(path: str, who: str, tag: str = "") -> Any:
            return http.get(path, headers=bearer(who) | ({"if-none-match": tag} if tag else {}))

        for path in SCREENS:
            tag = ask(path, ada).headers["etag"]
            assert (ask(path, ada, tag).status_code, ask(path, ada, tag).content) == (304, b"")
            assert ask(path, bob, tag).status_code == 200
            if path != "/limits":
                assert ask(f"{path}?{'days' if path == '/tools' else 'limit'}=7", ada, tag).status_code == 200
            letter = DeadLetter("run-signalled", 0, 7, "late", "it is over", b"k", b"v", "planner-1", 1)
            bench.log.append(DEAD_LETTER, 0, b"run-1/s", codec.encode(letter))
            bench.catch_up()
            assert ask(path, ada, tag).status_code == 200, path


def test_a_replay_is_for_admins_and_says_first_what_it_does(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "api.json")
    tokens = {role: bearer(keys.new(role, role)) for role in roles.ACCESS}
    bench = Bench(Heard, GatewayPart(api_keys=str(keys.path)))
    form = {"content-type": "application/x-www-form-urlencoded", "origin": "http://127.0.0.1:8321"}
    with bench.http as http:
        for role, who in tokens.items():
            refused = role != "admin"  # who may is told that Kafka is away
            answers = (
                http.get("/dead-letters/0/0?dry_run=true", headers=who),
                http.post("/dead-letters/0/0/replay", headers=who | form, content=""),
            )
            assert [answer.status_code for answer in answers] == [403 if refused else 503] * 2, role
            starts = http.post("/start", headers=who | form, content="agent=a&input=1&id=x")
            assert (starts.status_code == 403) is (role in ("viewer", "approver")), role
            tries = http.post("/policies", headers=who | form, content="policy=rules: []")
            assert (tries.status_code == 403) is (role in ("viewer", "approver")), role


def test_what_operators_did_is_exported_line_by_line(bench: Bench) -> None:
    for number in range(60):
        for key, value in of_people(f"many-{number}", "ann"):
            bench.log.write(key, value)
    bench.catch_up()
    answer = bench.http.get("/api/operator-actions.jsonl")

    assert answer.headers["content-type"] == "application/jsonl"
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert rows == bench.get("/api/operator-actions?limit=500")
    assert len(rows) == 2 * (60 + len(CORPUS))
    assert {row["action"] for row in rows} == {"paused", "cancelled"}
    (link,) = linked(page(bench, "/operators?actor=ann"), "/api/operator-actions.jsonl")
    assert link == "/api/operator-actions.jsonl?actor=ann"


def test_screens_are_pages_and_the_api_is_none() -> None:
    assert all(map(is_page, (*SCREENS, *FROM_KAFKA, "/workers", "/dead-letters/executor/0/1/replay")))
    assert not any(map(is_page, ("/api/runs", "/api/sessions", "/registry/subjects", "/healthz", "/toolsx")))


def test_every_screen_is_taken_and_checked_in_a_browser() -> None:
    routes = routes_of(build_api(Bench().gateway))
    pages = {getattr(each, "path", "") for each in routes if getattr(each, "response_class", None) is HTMLResponse}
    assert pages == set(TAKEN)

    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    assert not [name for names in TAKEN.values() for name in names if f'"{name}"' not in tests]


def test_every_status_has_a_word() -> None:
    macro = rendering._TEMPLATES.from_string('{% from "parts.html" import status %}{{ status(word) }}')
    for word in (*STATUSES, *STATES, "approval", "held", "left", "backoff", "noted"):
        assert Tags(macro.render(word=word)).text.strip(), word


def test_a_draft_is_judged_without_kafka_and_a_bomb_is_not(bench: Bench) -> None:
    form = {"content-type": "application/x-www-form-urlencoded", "origin": "http://127.0.0.1:8321"}

    def tried(draft: str, status: int = 200) -> str:
        answer = bench.http.post("/policies", headers=form, content=urlencode({"policy": draft, "agent": "shop"}))
        assert answer.status_code == status, answer.text
        check_text_alone(Tags(answer.text), draft)
        return Tags(answer.text).text

    assert "calls judged otherwise" in tried("rules:\n- {name: x, when: 'true', deny: no more}\n")
    assert "no policy" in tried("rules: 1")
    for text in CORPUS[:-2]:
        tried(json.dumps({"rules": [{"name": text[:80], "when": "true", "deny": text[:400]}]}))
        answer = bench.http.post("/policies", headers=form, content=urlencode({"policy": text}))
        assert answer.status_code in (200, 422)
        check_text_alone(Tags(answer.text), text)
    levels = "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{'*' + chr(97 + n)}, {'*' + chr(97 + n)}]\n" for n in range(20))
    tried(f"a: &a [x, x]\n{levels}", 422)
    tried("x" * 100_001, 422)
    tried("[" * 20_000, 422)


def test_a_draft_from_a_page_has_no_aliases() -> None:
    bomb = "a: &a [1, 2]\nb: [*a, *a]\n"

    assert load_text(bomb, "x")["b"] == [[1, 2], [1, 2]]
    with pytest.raises(MalformedError, match="x is not YAML"):
        load_text(bomb, "x", aliases=False)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=100))
def test_bars_keep_within_their_picture(days: list[tuple[int, int]]) -> None:
    bars = bars_of(days)

    assert len(bars) == len(days)
    assert all(0 <= bar.failed <= max(1, bar.height) <= BAR_HEIGHT for bar in bars)
    for (whole, bad), bar in zip(days, bars, strict=True):
        assert (bar.failed > 0) is (min(whole, bad) > 0)


def test_forms_of_screens_need_what_their_page_had(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "api.json")
    token = keys.new("ada", "admin")
    bench = Bench(Heard, GatewayPart(api_keys=str(keys.path)))
    form = {"content-type": "application/x-www-form-urlencoded", "origin": "http://127.0.0.1:8321"}
    with bench.http as http:
        entered = http.post("/login", content=f"key={token}", headers=form, follow_redirects=False)
        sent = form | {"cookie": entered.headers["set-cookie"].partition(";")[0]}
        csrf = re.search(r'name="csrf" value="([0-9a-f]{64})"', http.get("/", headers=sent).text)
        assert csrf is not None
        for path in ("/start", "/policies", "/dead-letters/0/0/replay"):
            for body in ("", "csrf=", f"csrf={'0' * 64}"):
                assert http.post(path, content=body, headers=sent).status_code == 403, path
            assert http.post(path, content=f"csrf={csrf[1]}", headers=sent | {"origin": "null"}).status_code == 403
            assert http.post(path, content=f"csrf={csrf[1]}", headers=sent).status_code in (200, 422, 503)
        tag = http.get("/", headers=sent).headers["etag"]
        assert http.get("/", headers=bearer(token) | {"if-none-match": tag}).status_code == 200
