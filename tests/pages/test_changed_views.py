"""Whoever can write the views' database changes what a page shows: then no page offers to decide what it shows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest

from refold.console.gateway.writing import WriteSide
from refold.console.pages import questions
from refold.console.pages.questions import MOST_INLINE
from refold.console.sql.opening import open_views
from refold.core.approval.ballot import DECIDING
from refold.core.approval.question import named
from refold.core.events import CallDoubted, CallProposed, Entry, Event, Failure
from refold.core.ids import RunId, approval_id, call_id
from refold.core.planning.asking import question_of
from refold.core.run.fold import advance
from refold.core.run.state import RunState
from refold.core.wire import codec
from tests.gateway.test_reading import Bench
from tests.projections.histories import NOW, Pair, asked, begun, call, entries

ASKED, SHOWN = json.dumps({"path": "/etc/passwd"}), json.dumps({"path": "prices.txt"})
Change = Callable[[sqlite3.Connection, dict[str, str]], None]
FORM = {"content-type": "application/x-www-form-urlencoded"}
BUTTONS = ('value="approve"', 'value="reject"', 'value="edit"', 'value="answer"', 'value="happened"', 'value="give_up"')


def with_question(run: str, args: str, *, doubt: bool) -> tuple[list[Pair], str]:
    """The records of a run that asks people about a call, or about its outcome, and the id of its question."""
    before: list[Event] = [*begun(), *(call(1, args) if doubt else call(1, args)[:1])]
    before += [CallDoubted(1, 1, Failure("lost", "?"))] if doubt else []
    event = replace(asked(1), question="")
    event = replace(event, attempt=2, covers=2, rule="doubt", about="doubt") if doubt else event
    state = RunState(RunId(run))
    advance(state, [*before, event], seq=1, at_ms=NOW + 40)
    question = named(question_of(state, state.call(1), state.open[1])).question
    pairs = entries(run, [*before, replace(event, question=question)])
    return pairs, approval_id(call_id(RunId(run), 3), question)


def lied(value: bytes) -> bytes:
    """An entry whose call has other arguments; its question is as it was."""
    entry = codec.decode(Entry, value)
    events = [replace(each, args=SHOWN) if isinstance(each, CallProposed) else each for each in entry.events]
    return codec.encode_entry(replace(entry, events=events))[1]


def change_value(views: sqlite3.Connection, tables: dict[str, str]) -> None:
    """One `UPDATE` of what the page reads."""
    ((value,),) = views.execute(f"SELECT value FROM {tables['entries']} WHERE run_id = 'asks'")
    views.execute(f"UPDATE {tables['entries']} SET value = ? WHERE run_id = 'asks'", [lied(value)])


def change_history(views: sqlite3.Connection, tables: dict[str, str]) -> None:
    """The same with the id of the entry, and the head of the run: a history that agrees with itself."""
    ((value,),) = views.execute(f"SELECT value FROM {tables['entries']} WHERE run_id = 'asks'")
    name, other = codec.encode_entry(codec.decode(Entry, lied(value)))
    views.execute(f"UPDATE {tables['entries']} SET value = ?, id = ? WHERE run_id = 'asks'", [other, name])
    views.execute(f"UPDATE {tables['heads']} SET entry = ? WHERE run_id = 'asks'", [name])


def change_nothing(views: sqlite3.Connection, tables: dict[str, str]) -> None:
    """What was asked is what is shown."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., tuple[Bench, str]]]:
    # The bench has no Kafka, which says who may decide: everybody may, so that the content alone withholds buttons.
    monkeypatch.setattr(WriteSide, "listens", True)
    monkeypatch.setattr(questions, "topics_of", lambda *_, **__: object())
    monkeypatch.setattr(
        questions, "_with_approval", lambda shared, index, question: replace(question, offers=frozenset(DECIDING))
    )
    benches = list[Bench]()

    def site(change: Change, args: str, *, doubt: bool) -> tuple[Bench, str]:
        bench = Bench(views=open_views(f"sqlite:///{tmp_path / 'views.db'}"))
        benches.append(bench)
        pairs, approval = with_question("asks", args, doubt=doubt)
        for key, value in pairs:
            bench.log.write(key, value)
        bench.catch_up()
        with closing(sqlite3.connect(tmp_path / "views.db")) as views, views:
            names = [name for (name,) in views.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            tables = {kind: next(name for name in names if name.endswith(kind)) for kind in ("entries", "heads")}
            change(views, tables)
        return bench, approval

    yield site
    for bench in benches:
        bench.database.close()


def pages_of(bench: Bench, approval: str) -> dict[str, str]:
    """The HTML of every place that shows a question."""
    with bench.http as http:
        chosen = http.post("/inbox", content=urlencode({f"pick:{approval}": "on"}), headers=FORM)
        paths = ("/runs/asks", f"/approvals/{approval}", "/inbox?show=all", "/inbox?show=doubt")
        return {"several": chosen.text} | {path: http.get(path).text for path in paths}


def decided_on(pages: dict[str, str]) -> dict[str, int]:
    """The pages that offer a decision, by how many buttons they have for one."""
    found = {path: sum(html.count(button) for button in BUTTONS) for path, html in pages.items()}
    return {path.partition("~")[0]: count for path, count in found.items() if count}


def test_what_agrees_with_its_digest_can_be_decided(opened: Callable[..., tuple[Bench, str]]) -> None:
    pages = pages_of(*opened(change_nothing, ASKED, doubt=False))

    assert decided_on(pages) == {"several": 2, "/runs/asks": 4, "/approvals/asks/3": 4}
    assert all("/etc/passwd" in pages[path] for path in ("several", "/runs/asks"))


def test_a_doubt_that_agrees_with_its_digest_can_be_decided(opened: Callable[..., tuple[Bench, str]]) -> None:
    pages = pages_of(*opened(change_nothing, ASKED, doubt=True))

    assert decided_on(pages).keys() == {"/runs/asks", "/approvals/asks/3", "/inbox?show=doubt", "several"}


@pytest.mark.parametrize("doubt", [False, True], ids=["call", "doubt"])
@pytest.mark.parametrize("change", [change_value, change_history])
def test_no_page_offers_to_decide_what_another_digest_is_of(
    opened: Callable[..., tuple[Bench, str]],
    change: Change,
    doubt: bool,
) -> None:
    pages = pages_of(*opened(change, ASKED, doubt=doubt))

    assert decided_on(pages) == {}
    if change is change_history:
        shown = [html for html in pages.values() if "prices.txt" in html]
        assert len(shown) >= 3
        assert all("Do not vote, tell an operator" in html for html in shown)
    else:
        assert "its rows are not the entries of its log" in pages["/runs/asks"]


def test_what_a_page_cuts_is_decided_on_the_page_that_has_all_of_it(opened: Callable[..., tuple[Bench, str]]) -> None:
    content = {"content": "x" * 3 * MOST_INLINE + "middle" + "y" * 3 * MOST_INLINE, "path": "/etc/passwd"}
    args = json.dumps({**content, "$name": "wipe", "deps": {"who": "ada"}}, sort_keys=True, separators=(",", ":"))
    pages = pages_of(*opened(change_nothing, args, doubt=False))
    (alone,) = (html for path, html in pages.items() if path.startswith("/approvals/"))

    assert decided_on(pages) == {"/approvals/asks/3": 4}
    card = alone[alone.index('aria-label="Arguments"') : alone.index('/vote">')]
    assert card.index("/etc/passwd") < card.index("xxx")
    assert "middle" in card
    assert "wipe" in card
    assert "<details" not in card
    for name in ("several", "/runs/asks"):
        assert "characters are not shown here" in pages[name]
        assert "decide it on the page that has the whole" in pages[name]
        assert "/etc/passwd" in pages[name]


def test_a_change_does_not_hide_the_other_arguments(opened: Callable[..., tuple[Bench, str]]) -> None:
    args = json.dumps({"after": "b", "before": "a", "note": "n" * 300, "path": "/etc/passwd", "sure": True})
    pages = pages_of(*opened(change_nothing, args, doubt=False))

    for path in ("several", "/runs/asks"):
        assert "/etc/passwd" in pages[path].partition("All arguments")[2]
        assert '<details class="fold" id="args-1" open>' in pages[path]
