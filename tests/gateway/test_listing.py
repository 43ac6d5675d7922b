"""Lists beside those of runs: sessions, calls in doubt, versions that runs need, and what only Kafka knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from refold.client.reading.api import CursorFilter, SessionPage
from refold.client.reading.member import AgentServed, ServedBy
from refold.console.gateway import listing
from refold.console.gateway.listing import doubt_page, session_page, version_rows
from refold.console.projections.service import KeptProjection
from refold.console.projections.shipped.projection import Shipped
from refold.console.sql.opening import open_views
from refold.core.events import (
    DOUBT,
    CallCompleted,
    CallDoubted,
    Event,
    Failure,
    RunCompleted,
    RunRequested,
    RunStarted,
)
from tests.gateway.test_reading import Bench, served
from tests.projections.histories import asked, call, entries


@pytest.fixture
def site() -> Iterator[Bench]:
    with served() as site:
        yield site


def begun(*sessions: str, agent: str = "shop", version: str = "1") -> list[Event]:
    return [RunRequested(agent, "{}", "d", "s", "ann", sessions=list(sessions)), RunStarted(version, "app")]


def write(site: Bench, run: str, *batches: list[Event]) -> None:
    for key, value in entries(run, *batches):
        site.log.write(key, value)


def asked_what_came(step: int) -> Event:
    return replace(asked(step), about=DOUBT)


def in_doubt(site: Bench, run: str, *more: Event) -> None:
    write(site, run, [*begun(), *call(1)], [CallDoubted(1, 1, Failure("lost", "no answer")), *more])


def all_pages(site: Bench, limit: int) -> list[dict[str, Any]]:
    found, cursor = list[dict[str, Any]](), ""
    while True:
        page = site.get(f"/api/sessions?limit={limit}&cursor={cursor}")
        found += page["sessions"]
        if not (cursor := page["cursor"]):
            return found


@pytest.mark.parametrize(("limit", "walked"), [(1, 5_000), (2, 5_000), (500, 5_000), (2, 500)])
def test_every_session_is_on_one_page_with_its_newest_run(
    site: Bench, limit: int, walked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST_WALKED", walked)
    for number in range(6):
        write(site, f"in-{number}", begun("all", f"mod-{number % 3}", "a/b", "ä ' %"))
    site.catch_up()

    found = all_pages(site, limit)

    assert {each["session"]: (each["runs"], each["run_id"]) for each in found} == {
        "all": (6, "in-5"),
        "a/b": (6, "in-5"),
        "ä ' %": (6, "in-5"),
        **{f"mod-{number}": (2, f"in-{number + 3}") for number in range(3)},
    }
    assert len(found) == 6
    assert found[0]["status"] == "running"


def test_a_page_of_sessions_ends_after_so_many_rows(site: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_PAGE", 2)
    monkeypatch.setattr(listing, "MOST_WALKED", 4)
    write(site, "first", begun("rare"))
    for number in range(9):
        write(site, f"in-{number}", begun("common"))
    site.catch_up()

    with site.gateway.view("") as view:
        first = session_page(view, CursorFilter())
        pages, cursor = [first], first.cursor
        while cursor:
            pages.append(session_page(view, CursorFilter(cursor=cursor)))
            cursor = pages[-1].cursor

    assert [[each.session for each in page.sessions] for page in pages] == [["common"], [], ["rare"]]


def test_the_runs_of_a_session_are_listed_with_all_filters(site: Bench) -> None:
    write(site, "one", begun("s/1"), [RunCompleted("1")])
    write(site, "two", begun("s/1"))
    write(site, "three", begun("s/2"))
    site.catch_up()

    assert {run["run_id"] for run in site.get("/api/sessions/s/1")["runs"]} == {"one", "two"}
    assert {run["run_id"] for run in site.get("/api/sessions/s%2F1")["runs"]} == {"one", "two"}
    assert [run["run_id"] for run in site.get("/api/sessions/s/1?state=completed&session=s/2")["runs"]] == ["one"]
    assert site.get("/api/sessions/s/1?state=failed")["runs"] == []
    assert site.get("/api/sessions/s/3", 404)["code"] == "not_found"
    assert site.get("/api/sessions/s/1?state=odd", 422)["code"] == "malformed"


def test_cursors_of_one_list_are_none_of_another(site: Bench) -> None:
    for number in range(4):
        write(site, f"in-{number}", begun(f"s-{number}", "all"))
    in_doubt(site, "odd-1")
    in_doubt(site, "odd-2")
    site.catch_up()
    cursors = {
        path: site.get(f"/api/{path}?limit=1")["cursor"] for path in ("runs", "sessions", "doubts", "sessions/all")
    }

    for path in ("runs", "sessions", "doubts"):
        for of, cursor in cursors.items():
            assert cursor
            if of != path:
                assert site.get(f"/api/{path}?limit=1&cursor={cursor}", 422)["code"] == "malformed", (path, of)


def test_calls_in_doubt_are_listed_until_they_are_settled(site: Bench) -> None:
    in_doubt(site, "odd-1")
    in_doubt(site, "odd-2", asked_what_came(1))
    write(site, "fine", [*begun(), *call(1)], [CallCompleted(1, 1, "1"), RunCompleted("1")])
    site.catch_up()

    first = site.get("/api/doubts?limit=1")
    second = site.get(f"/api/doubts?limit=1&cursor={first['cursor']}")

    (alone,), (people,) = first["doubts"], second["doubts"]
    assert (alone["call_id"], alone["tool"], alone["effect"], alone["attempt"]) == ("odd-1/3", "pay", "once", 1)
    assert (alone["approval"], alone["approvers"], alone["quorum"]) == ("", "", 0)
    assert alone["ways"] == ["did_not_happen", "happened", "give_up"]
    assert alone["sent_ms"] > 0
    assert (people["run_id"], people["agent"], people["approvers"], people["quorum"]) == ("odd-2", "shop", "ada", 1)
    assert people["approval"].startswith("odd-2/3~")
    assert second["cursor"] == ""


def test_an_outcome_of_a_call_that_is_none_is_refused_before_anything_is_sent(site: Bench) -> None:
    in_doubt(site, "odd-1")
    write(site, "fine", [*begun(), *call(1)], [CallCompleted(1, 1, "1")])
    site.catch_up()

    def resolved(call: str, **body: Any) -> tuple[int, str]:
        found = site.http.post(f"/api/doubts/{call}/resolve", json={"verdict": "give_up", **body})
        return found.status_code, found.json()["code"]

    assert resolved("nobody/3") == (404, "not_found")
    assert resolved("odd-1/2") == (404, "not_found")
    assert resolved("odd-1") == (422, "malformed")
    assert resolved("fine/3") == (409, "conflict")
    assert resolved("odd-1/3", verdict="perhaps") == (422, "malformed")
    assert resolved("odd-1/3", result=7) == (422, "malformed")
    assert resolved("odd-1/3") == (503, "unreachable")
    assert resolved("odd-1/3~" + "0" * 32) == (422, "usage")  # there is no vote key


def test_where_people_are_asked_an_operator_does_not_resolve(site: Bench) -> None:
    in_doubt(site, "odd-2", asked_what_came(1))
    site.catch_up()

    found = site.http.post("/api/doubts/odd-2/3/resolve", json={"verdict": "give_up"})

    assert (found.status_code, found.json()["code"]) == (409, "conflict")
    assert "odd-2/3~" in found.json()["hint"]


SERVED = AgentServed(
    agent="shop", version="2", manifest={}, members=[ServedBy(member="planner-1", started_ms=0, reported_ms=0)]
)


def test_versions_that_runs_need_are_counted_with_those_who_have_them(site: Bench) -> None:
    for number in range(3):
        write(site, f"old-{number}", begun(version="1"))
    write(site, "new", begun(version="2"))
    write(site, "over", begun(version="0"), [RunCompleted("1")])
    write(site, "asked", begun()[:1])
    site.catch_up()

    with site.gateway.view("") as view:
        rows = version_rows(view, [SERVED])

    assert [(row.version, row.live, row.runs, row.members) for row in rows] == [
        ("1", 3, ["old-0", "old-1", "old-2"], []),
        ("2", 1, ["new"], ["planner-1"]),
    ]


@pytest.mark.parametrize("path", ["agents", "tools", "versions", "halts", "projections"])
def test_what_only_kafka_knows_is_503_while_it_is_away(site: Bench, path: str) -> None:
    assert site.get(f"/api/{path}", 503)["code"] == "unreachable"


def test_sqlite_lists_what_memory_lists(site: Bench, tmp_path: Any) -> None:
    for number in range(4):
        write(site, f"in-{number}", begun("all", f"mod-{number % 2}", "\x1a\ud800"[:1]))
    in_doubt(site, "odd-1")
    site.catch_up()
    database = open_views(f"sqlite:///{tmp_path / 'views.db'}")
    kept = KeptProjection(Shipped(), database, site.log)
    for _ in range(200):
        kept.turn(0.0)

    def lists(view: Any) -> tuple[SessionPage, Any, Any]:
        wanted = CursorFilter(limit=2)
        first = session_page(view, wanted)
        second = session_page(view, CursorFilter(limit=2, cursor=first.cursor))
        return second, doubt_page(view, wanted), version_rows(view, [SERVED])

    with site.gateway.view("") as one, database.store("refold", 1).snapshot() as other:
        assert lists(one) == lists(other)
    assert json.dumps(site.get("/api/sessions"))
    database.close()
