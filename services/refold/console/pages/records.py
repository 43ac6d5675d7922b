"""Pages of sessions, agents and tools, limits, and actions of operators, from the view alone."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import Field

from refold.client.operations.runs import RunQuery
from refold.client.reading.api import ActionFilter, ApiBody, CursorFilter, RunSummary
from refold.client.reading.budget import LimitInUse, Spending
from refold.console.gateway.figures import WINDOW_MS
from refold.console.gateway.listing import Activity, activity_of, session_page
from refold.console.gateway.site import Gateway, Site
from refold.console.pages.rendering import view_page
from refold.console.pages.screen import SCREEN, Cell, Choices, DayBar, Grid, Passage, bars_of, grid_of, url
from refold.console.pages.wording import called_name
from refold.core.errors import NotFoundError
from refold.core.messages import RunInsight
from refold.core.planning.windows import DAY_MS
from refold.core.run.state import RunState
from refold.engine.ports.tables import ViewReader
from refold.sdk.projection import day_of

WINDOWS = (("today", 1), ("7 days", 7), ("14 days", 14), ("30 days", 30), ("90 days", 90))
USUAL_DAYS = 14
ALERTS = {"failing": "failing tool", "loop": "loop of equal calls"}
MOST_NOW = 20
"""Agents and tools of the last minutes that are shown."""
MOST_TURNS = 20
"""Top runs of a session in its conversation."""


class ShownSession(CursorFilter):
    session: str = Field("", max_length=500)


class ShownActivity(ApiBody):
    days: int = Field(USUAL_DAYS, ge=1, le=366)
    agent: str = Field("", max_length=500)
    tool: str = Field("", max_length=500)


def record_pages(site: APIRouter) -> None:
    @site.get("/sessions", response_class=HTMLResponse)
    def sessions_page(shared: Site, request: Request, filters: Annotated[ShownSession, Query()]) -> Response:
        def values(view: ViewReader) -> dict[str, Any]:
            about = {"place": "/sessions", "title": "Sessions"}
            if filters.session:
                heading = f"Session {filters.session}"
                return {**about, "heading": heading, "parts": [*_session_parts(shared, view, filters)]}
            lead = "Runs that belong together, such as those of one conversation."
            return {**about, "lead": lead, "parts": [_sessions_grid(view, filters)]}

        return view_page(SCREEN, shared, request, values)

    @site.get("/tools", response_class=HTMLResponse)
    def tools_page(shared: Site, request: Request, filters: Annotated[ShownActivity, Query()]) -> Response:
        figures = shared.figures.latest()

        def values(view: ViewReader) -> dict[str, Any]:
            days = [day_of(int(time.time() * 1000) - n * DAY_MS) for n in reversed(range(filters.days))]
            about = activity_of(view, days[0])
            windows = [(label, url("/tools", days=n), n == filters.days) for label, n in WINDOWS]
            chosen = [_days_grid(about, days, filters)] if filters.agent else []
            return {
                "place": "/tools",
                "title": "Agents and tools",
                "lead": "What agents and tools did, by the days of UTC. Erased runs are part of all sums.",
                "parts": [
                    *(now_grid(figures), Choices("days", "Sums of", windows), *chosen),
                    *(_agents_grid(about, days), _tools_grid(about, days), _loops_grid(about)),
                ],
            }

        return view_page(SCREEN, shared, request, values)

    @site.get("/limits", response_class=HTMLResponse)
    def limits_page(shared: Site, request: Request) -> Response:
        def values(view: ViewReader) -> dict[str, Any]:
            grid = Grid(
                "limits",
                "Limits in use",
                ("Window", "Agent", "Label", "Tokens", "Cost", "Calls", "Then", "Reached"),
                [[*_limit_cells(limit)] for limit in shared.reading.limits(view)],
                "Amounts appear here once a run spends of a limit that its agent declares.",
            )
            lead = "What was spent, as planners reported it last; the last second may be missing."
            return {"place": "/limits", "title": "Limits per day and month", "lead": lead, "parts": [grid]}

        return view_page(SCREEN, shared, request, values)

    @site.get("/operators", response_class=HTMLResponse)
    def operators_page(shared: Site, request: Request, filters: Annotated[ActionFilter, Query()]) -> Response:
        def values(view: ViewReader) -> dict[str, Any]:
            used = filters.model_dump(exclude_defaults=True)
            everybody = [("Everybody", "/operators")] if used else []
            return {
                "place": "/operators",
                "title": "Operators",
                "heading": f"Actions of {filters.actor}" if filters.actor else "What operators did",
                "lead": "Each is an event in the history of its run, and stays there.",
                "parts": [_actions_grid(shared, view, filters)],
                "actions": [*everybody, ("As JSON Lines", url("/api/operator-actions.jsonl", **used))],
            }

        return view_page(SCREEN, shared, request, values)


def _actions_grid(shared: Gateway, view: ViewReader, filters: ActionFilter) -> Grid:
    rows = shared.reading.actions(view, filters)
    return grid_of(
        "actions",
        "Actions",
        rows,
        "Time at at_ms; Who; Did; Run; Reason",
        {
            "Who": lambda row: Cell(row.actor, href=url("/operators", actor=row.actor)),
            "Did": lambda row: Cell(
                f"{row.action} {row.detail}".replace("_", " "), note=f"step {row.step}" * (row.step > 0)
            ),
            "Run": lambda row: Cell(row.run_id, "code", href=f"/runs/{row.run_id}?seq={row.seq}#event"),
            "Reason": lambda row: Cell(row.reason or "none given"),
        },
        empty="Cancels, pauses, retries, resolved calls and notes appear here, with who did it and why:",
        command="refold run pause RUN --reason WHY",
        note=f"the latest {filters.limit}" if len(rows) == filters.limit else "",
    )


def _sessions_grid(view: ViewReader, filters: ShownSession) -> Grid:
    page = session_page(view, filters)
    return grid_of(
        "sessions",
        "Sessions",
        page.sessions,
        "Session; Status status status; Newest run; Runs num runs; Last change at at_ms",
        {
            "Session": lambda row: Cell(row.session, href=url("/sessions", session=row.session)),
            "Newest run": lambda row: Cell(row.says or row.run_id, href=f"/runs/{row.run_id}", note=row.agent),
        },
        empty="Sessions appear here as soon as a run is asked for in one:",
        command="refold run start AGENT --session NAME --input '{}'",
        next=url("/sessions", cursor=page.cursor) if page.cursor else "",
    )


def _session_parts(shared: Gateway, view: ViewReader, filters: ShownSession) -> Iterator[object]:
    page = shared.reading.runs(view, RunQuery(session=filters.session), filters.cursor)
    if not page.runs and not filters.cursor:
        raise NotFoundError(f"no run is part of the session {filters.session[:100]!r}", hint="/sessions has all")
    columns = (
        "Status status status; Run; Asked for at requested_ms; Steps num steps; Tokens num tokens; Cost usd nano_usd"
    )
    cells = {
        "Run": lambda run: Cell(
            run.says or run.failure_message or run.run_id, href=f"/runs/{run.run_id}", note=run.agent
        )
    }
    following = url("/sessions", session=filters.session, cursor=page.cursor) if page.cursor else ""
    yield grid_of("session", "Runs", page.runs, f"{columns}; Id code run_id", cells, next=following)
    for summary in reversed([run for run in page.runs if not run.parent][:MOST_TURNS]):
        yield from _turn_passages(summary, shared.reading.run(view, summary.run_id).state)


def _turn_passages(summary: RunSummary, state: RunState) -> Iterator[Passage]:
    path = f"/runs/{summary.run_id}"
    if state.request is not None:
        yield Passage(f"in-{summary.run_id}", f"{summary.requester} asked", state.request.input, href=path)
    if state.over:
        label = "answered" if summary.status == "completed" else f"ended: {summary.status}"
        result = getattr(state.end, "result", "") or summary.failure_message
        yield Passage(f"out-{summary.run_id}", f"{summary.agent} {label}", result, href=path)


def _bars_by_day(activity: Activity, days: Sequence[str], agent: str, tool: str) -> list[DayBar]:
    by_day = activity.by_day.get((agent, tool), {})
    whole, bad = ("calls", "failed") if tool else ("runs_requested", "runs_failed")
    rows = map(by_day.get, days)
    return bars_of((getattr(row, whole), getattr(row, bad)) if row else (0, 0) for row in rows)


def now_grid(figures: Sequence[RunInsight]) -> Grid:
    """Return figures of the last minutes, alerts first."""
    alerts = [figure for figure in figures if figure.kind in ALERTS]
    usual = (figure for figure in figures if figure.kind not in ALERTS)
    busy = sorted(usual, key=lambda figure: (figure.kind, -_calls_of(figure)))
    return grid_of(
        "now",
        f"The last {WINDOW_MS // 60_000} minutes",
        [*alerts, *busy[:MOST_NOW]],
        "What; Name; Runs; Calls; Completed num completed; Failed; Tokens num tokens; Cost usd nano_usd",
        {
            "What": lambda row: Cell(ALERTS.get(row.kind, row.kind)),
            "Name": lambda row: Cell(
                called_name(row.name),
                href=f"/runs/{row.run_id}"
                if row.run_id
                else url("/", **{"agent" if row.kind == "agent" else "tool": row.name}),
                note=row.run_id,
            ),
            "Runs": lambda row: Cell(row.requested, "num") if row.kind == "agent" else Cell(""),
            "Calls": lambda row: Cell(row.equal_calls or _calls_of(row), "num"),
            "Failed": lambda row: Cell(row.failed + row.retried + row.doubted, "num"),
        },
        empty="Live figures and alerts appear here while this runs:",
        command="refold serve insights",
        note=f"the {MOST_NOW} busiest" if len(busy) > MOST_NOW else "",
    )


def _calls_of(row: RunInsight) -> int:
    return row.calls if row.kind == "agent" else row.completed + row.failed + row.retried + row.doubted


def _agents_grid(activity: Activity, days: Sequence[str]) -> Grid:
    return grid_of(
        "agents",
        "Agents",
        activity.agents,
        "Agent; Runs; Completed num runs_completed; Failed; Cancelled num runs_cancelled; Calls num calls; "
        "Effects avoided num effects_avoided; Tokens num tokens; Cost usd nano_usd; More",
        {
            "Agent": lambda row: Cell(row.agent, href=url("/", agent=row.agent)),
            "Runs": lambda row: Cell(row.runs_requested, "num", bars=_bars_by_day(activity, days, row.agent, "")),
            "Failed": lambda row: Cell(row.runs_failed, "num", more=_failure_cells(activity, row.agent, "")),
            "More": lambda row: Cell("by day", href=_link_by_day(days, row.agent, "")),
        },
        empty="Agents appear here with their first run:",
        command="refold run start AGENT --input '{}'",
    )


def _tools_grid(activity: Activity, days: Sequence[str]) -> Grid:
    return grid_of(
        "tools",
        "Tools and models",
        activity.tools,
        "Tool; Calls; Failed; Retries num retries; In doubt num doubts; p50; p95; "
        "Tokens num tokens; Cost usd nano_usd; Effects avoided num effects_avoided; More",
        {
            "Tool": lambda row: Cell(
                called_name(row.tool), href=url("/", agent=row.agent, tool=row.tool), note=row.agent
            ),
            "Calls": lambda row: Cell(row.calls, "num", bars=_bars_by_day(activity, days, row.agent, row.tool)),
            "Failed": lambda row: Cell(row.failed, "num", more=_failure_cells(activity, row.agent, row.tool)),
            "p50": lambda row: Cell(row.p50_ms or "none", "took"),
            "p95": lambda row: Cell(row.p95_ms or "none", "took"),
            "More": lambda row: Cell("by day", href=_link_by_day(days, row.agent, row.tool)),
        },
        empty="Tools and models appear here with their first call.",
        note="bars: calls a day, the failed part below in red",
    )


def _link_by_day(days: Sequence[str], agent: str, tool: str) -> str:
    link = url("/tools", days=len(days), agent=agent, tool=tool)
    return f"{link}#by-day" if link else ""


def _failure_cells(activity: Activity, agent: str, tool: str) -> list[Cell]:
    return [
        Cell(f"{number} {code}", href=url("/", agent=agent, tool=tool, code=code))
        for code, number in activity.failures.get((agent, tool), ())
    ]


def _days_grid(activity: Activity, days: Iterable[str], query: ShownActivity) -> Grid:
    by_day = activity.by_day.get((query.agent, query.tool), {})
    numbers = "Calls num calls; Failed num failed" if query.tool else "Runs num runs_requested; Failed num runs_failed"
    return grid_of(
        "by-day",
        "By day",
        [by_day[day] for day in reversed([*days]) if day in by_day],
        f"Day text day; {numbers}; Retries num retries; In doubt num doubts; Tokens num tokens; Cost usd nano_usd; "
        "Avoided num effects_avoided",
        {},
        empty="Nothing on these days.",
        note=f"{called_name(query.tool)} of {query.agent}" if query.tool else query.agent,
    )


def _loops_grid(activity: Activity) -> Grid:
    return grid_of(
        "loops",
        "Calls that repeat",
        activity.loops,
        "Tool; Times; Steps; Run",
        {
            "Tool": lambda row: Cell(called_name(str(row["tool"]))),
            "Times": lambda row: Cell(row["times"], "num"),
            "Steps": lambda row: Cell(f"{row['first_step']} to {row['last_step']}"),
            "Run": lambda row: Cell(row["run_id"], "code", href=f"/runs/{row['run_id']}"),
        },
        empty="No run has called a tool three times or more with the same arguments.",
        note="the same tool with the same arguments, of all days",
    )


def _limit_cells(limit: LimitInUse) -> Iterator[Cell]:
    label = f"{limit.label} = {limit.value}" if limit.label else "any"
    yield from (Cell(limit.window), Cell(limit.agent), Cell(label))
    for name in Spending.model_fields:
        kind = "usd" if name == "nano_usd" else "num"
        most = getattr(limit.limits, name)
        yield Cell(getattr(limit.spent, name), kind, more=[Cell(most, kind, note="at most")] if most else ())
    yield Cell(limit.then)
    yield Cell({"hard": "used up", "soft": f"over {limit.soft_percent} %"}.get(limit.reached, "below"))
