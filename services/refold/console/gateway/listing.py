"""Lists from the view other than runs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from refold.client.reading.api import CursorFilter, DailyRow, DoubtPage, DoubtRow, SessionPage, SessionRow, VersionRow
from refold.client.reading.member import AgentServed
from refold.console.gateway.reading import behind_cursor, cursor_behind, daily_sums, page_behind
from refold.console.projections.shipped import tables
from refold.core.planning.asking import CAME
from refold.core.tables import ViewRow
from refold.engine.ports.tables import MOST_PAGE, Query, ViewReader, Where
from refold.sdk.source import spoken

MOST_WALKED = 5_000
"""Rows that a page of sessions examines: some 30 ms. A session with more runs makes a page short."""
RUNS_NAMED = 20
MOST_SUMMED = 50_000
"""Rows of sums by day that are added up."""
LEAST_REPEATED = 3
"""Equal calls of a run that count as a loop."""
CODES_NAMED = 5


def session_page(view: ViewReader, filters: CursorFilter) -> SessionPage:
    """Return a page of sessions, the one with the latest request first; it may be short."""
    newest = Query(tables.RUN_SESSIONS, order="requested_ms", descending=True, limit=MOST_PAGE)
    query, page, sessions = behind_cursor(filters.cursor, "sessions", newest), list[ViewRow](), set[str]()
    for _ in range(MOST_WALKED // MOST_PAGE):
        rows = view.query(query)
        for row in rows:
            query = replace(query, after=query.place(row))
            session = str(row[tables.RUN_SESSIONS.places["session"]])
            of_session = replace(newest, where=(Where("session", "=", session),), limit=1)
            # A session that an earlier page has stands there with a newer run.
            if session not in sessions and (not filters.cursor or view.query(of_session) == [row]):
                page.append(row)
                if len(page) == filters.limit:
                    return _page_of_sessions(view, page, cursor_behind(query.after, "sessions"))
            sessions.add(session)
        if len(rows) < MOST_PAGE:
            return _page_of_sessions(view, page, "")
    return _page_of_sessions(view, page, cursor_behind(query.after, "sessions"))


def _page_of_sessions(view: ViewReader, page: list[ViewRow], cursor: str) -> SessionPage:
    rows, sessions = [tables.RUN_SESSIONS.named(row) for row in page], []
    runs = view.rows(tables.RUNS, [(row["run_id"],) for row in rows])
    for row in rows:
        newest = tables.RUNS.named(runs[row["run_id"],])
        count = view.count(Query(tables.RUN_SESSIONS, (Where("session", "=", row["session"]),)))
        columns = {name: newest[name] for name in SessionRow.model_fields if name in newest}
        sessions.append(SessionRow(session=row["session"], runs=count, **columns))
    return SessionPage(sessions=sessions, cursor=cursor)


def doubt_page(view: ViewReader, filters: CursorFilter) -> DoubtPage:
    """Return a page of calls in doubt, the oldest first."""
    query = Query(tables.STEPS, (Where("status", "=", "doubt"),), order="sent_ms", limit=filters.limit)
    page, cursor = page_behind(view, filters.cursor, "doubts", query)
    steps = [tables.STEPS.named(row) for row in page]
    runs = view.rows(tables.RUNS, [(step["run_id"],) for step in steps])
    questions = view.rows(tables.APPROVALS, [(step["approval_id"],) for step in steps])
    doubts = [_doubt_row(step, runs[step["run_id"],], questions.get((step["approval_id"],))) for step in steps]
    return DoubtPage(doubts=doubts, cursor=cursor)


def _doubt_row(step: dict[str, Any], run: ViewRow, question: ViewRow | None) -> DoubtRow:
    about = tables.APPROVALS.named(question) if question else {"approvers": "", "quorum": 0, "expires_ms": 0}
    more = {"tool": step["name"], "approval": step["approval_id"], "ways": [*CAME.values()]}
    columns = {**about, **step, **more, "agent": tables.RUNS.named(run)["agent"]}
    return DoubtRow(**{name: columns[name] for name in DoubtRow.model_fields})


def version_rows(view: ViewReader, serving: Iterable[AgentServed]) -> list[VersionRow]:
    have = {(agent.agent, agent.version): [member.shown for member in agent.members] for agent in serving}
    live = (Where("ended_ms", "=", 0), Where("version", ">", ""))
    counts = view.counts(Query(tables.RUNS, live), ("agent", "version"))
    rows = []
    for (agent, version), count in sorted(counts.items()):
        of = (Where("ended_ms", "=", 0), Where("agent", "=", agent), Where("version", "=", version))
        runs = [str(row[0]) for row in view.query(Query(tables.RUNS, of, limit=RUNS_NAMED))]
        members = have.get((str(agent), spoken(str(version))[0]), [])
        rows.append(VersionRow(agent=str(agent), version=str(version), live=count, runs=runs, members=members))
    return rows


class Activity(NamedTuple):
    """Sums since a day by agent and tool, failures by code, and loops. An empty tool: the agent's runs."""

    agents: list[DailyRow]
    tools: list[DailyRow]
    by_day: dict[tuple[str, str], dict[str, DailyRow]]
    failures: dict[tuple[str, str], list[tuple[str, int]]]
    loops: list[dict[str, Any]]


def activity_of(view: ViewReader, since: str) -> Activity:
    """Return the figures of the page of agents and tools, from a day `2026-11-23` on."""
    rows = view.query(Query(tables.DAILY, (Where("day", ">=", since),), limit=MOST_SUMMED))
    by_day: dict[tuple[str, str], dict[str, DailyRow]] = defaultdict(dict)
    for day in daily_sums(_without_columns(rows, "model")):
        by_day[day.agent, day.tool][day.day] = day
    codes: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in view.query(Query(tables.DAILY_FAILURES, (Where("day", ">=", since),), limit=MOST_SUMMED)):
        of = tables.DAILY_FAILURES.named(row)
        codes[of["agent"], of["tool"]][of["code"]] += of["n"]
    failures = {key: counts.most_common(CODES_NAMED) for key, counts in codes.items()}
    often = (Where("times", ">=", LEAST_REPEATED),)
    looping = Query(tables.REPEATED_CALLS, often, (), "times", descending=True, limit=RUNS_NAMED)
    tools = daily_sums(row for row in _without_columns(rows, "day", "model") if row[tables.DAILY.places["tool"]])
    return Activity(
        sorted(daily_sums(_without_columns(rows, "day", "tool", "model")), key=lambda day: -day.runs_requested),
        sorted(tools, key=lambda day: -day.calls),
        by_day,
        failures,
        [*map(tables.REPEATED_CALLS.named, view.query(looping))],
    )


def _without_columns(rows: Iterable[ViewRow], *names: str) -> Iterator[ViewRow]:
    places = {tables.DAILY.places[name] for name in names}
    for row in rows:
        yield tuple("" if place in places else value for place, value in enumerate(row))
