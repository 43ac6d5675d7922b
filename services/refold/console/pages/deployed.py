"""Dead letters, versions and health, from the view and from Kafka."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from refold.client.catalog import halt_rows
from refold.client.letters import find_letter, whole_letter
from refold.client.operations import run as operations
from refold.client.operations.run import By
from refold.client.reading.api import ApiBody, LetterFilter
from refold.client.reading.member import AgentServed, ToolServed
from refold.client.schedules import LABEL, ScheduleRow
from refold.console.gateway.listing import version_rows
from refold.console.gateway.roles import ROUTE_ROLES
from refold.console.gateway.routes.health import health_of
from refold.console.gateway.routes.lists import catalog_of, projections_of, replay_of, served_of, workers_of
from refold.console.gateway.site import DEFAULT_WAIT_S, Gateway, Site
from refold.console.pages.rendering import form_of, html_page, one_of, view_page
from refold.console.pages.screen import SCREEN, AskField, AskForm, Cell, Grid, Passage, grid_of, url
from refold.core.errors import NotFoundError, RefoldError
from refold.core.redaction import public_url
from refold.engine.ports.tables import ViewReader

LETTERS, SCHEDULES = "/dead-letters", "/schedules"
ACTS = ("trigger", "pause", "resume")
"""What the page does with a schedule."""
HEX_SHOWN = 2_000
"""Digits of an input in hex."""


class ShownLetter(ApiBody):
    """Query of a dead letter's page."""

    whole: bool = False
    dry_run: bool = False
    sent: str = Field("", pattern=r"^([a-z-]{1,40}/[0-9]{1,9}/[0-9]{1,18})?$")


def deployed_pages(site: APIRouter) -> None:
    @site.get(LETTERS, response_class=HTMLResponse)
    def letters_page(shared: Site, request: Request, filters: Annotated[LetterFilter, Query()]) -> Response:
        def values(view: ViewReader) -> dict[str, Any]:
            chosen = filters.model_dump(exclude_defaults=True)
            lead = "Inputs that no service could use. None is lost: each lies in its topic, and can be replayed."
            actions = [("Show all", LETTERS)] if chosen else []
            parts = [_letters_grid(shared, view, filters)]
            return {"place": LETTERS, "title": "Dead letters", "lead": lead, "actions": actions, "parts": parts}

        return view_page(SCREEN, shared, request, values)

    @site.get(f"{LETTERS}/{{place:path}}", response_class=HTMLResponse)
    def letter_page(shared: Site, place: str, filters: Annotated[ShownLetter, Query()]) -> HTMLResponse:
        role = ROUTE_ROLES["replay_form"]
        if filters.dry_run:  # it reads a whole partition
            shared.check_role(role)
        with shared.log() as runs:
            content = find_letter(runs.reader, place)
            letter = whole_letter(place, content)
            sent = replay_of(shared, place, dry_run=True) if filters.dry_run else None
        link = f"{LETTERS}/{letter.letter}"
        facts = (
            *(("Reason", letter.reason), ("Code", letter.code), ("Refused by", letter.service)),
            *(("Input lies in", letter.lies), ("Key", letter.key), ("Size", f"{len(content.value)} bytes")),
        )
        rows = [[Cell(name), Cell(text)] for name, text in facts]
        parts: list[object] = [Grid("facts", "What was refused", ("Fact", "Value"), rows, "")]
        if filters.sent:
            parts.insert(0, Passage("sent", "The input was sent again", f"It lies in {filters.sent}."))
        if sent is not None:
            note = (
                f"Nothing was sent. The replay writes the same {len(content.value)} bytes under the same key to "
                f"{sent.topic}, partition {sent.partition}. The run that they are for takes them as if they came now; "
                "one that has them already ignores them."
            )
            parts.append(AskForm("replay", "Replay this input?", f"{link}/replay", (), "Replay", note, back=link))
        if filters.whole:
            parts += [
                Passage("value", "Input", letter.value, href=f"/api{link}"),
                Passage("hex", "Input in hex", letter.value_hex[:HEX_SHOWN], "its beginning"),
            ]
        links = [("Show the input", f"{link}?whole=true")]
        if shared.may_write("replay_form"):
            links.append(("Replay: try it first", f"{link}?dry_run=true#replay"))
        about: dict[str, Any] = {"title": "Dead letter", "heading": f"Dead letter {letter.letter}"}
        return html_page(SCREEN, shared, place=LETTERS, actions=links, parts=parts, **about)

    @site.post(f"{LETTERS}/{{place:path}}/replay", response_class=HTMLResponse)
    async def replay_form(shared: Site, place: str, request: Request) -> Response:
        await form_of(request, shared)
        done = await run_in_threadpool(replay_of, shared, place, dry_run=False)
        return RedirectResponse(f"{LETTERS}/{place}?sent={done.topic}/{done.partition}/{done.offset}", 303)

    @site.get(SCHEDULES, response_class=HTMLResponse)
    def schedules_page(shared: Site, request: Request) -> Response:
        def values(view: ViewReader) -> dict[str, Any]:
            rows = shared.reading.schedules(view)
            live = [row.schedule for row in rows if row.status in ("active", "paused")]
            fields = (
                AskField("schedule", "Schedule", "pick", choices=live),
                AskField("act", "Do", "pick", choices=ACTS),
            )
            form = AskForm(
                "act", "Start or hold", SCHEDULES, fields, "Do it", "A trigger starts a run beside the ticks."
            )
            parts = [_schedules_grid(rows), *[form] * (bool(live) and shared.may_use("schedule_form"))]
            lead = "Agents that run by the clock. Times are local to each schedule's zone."
            return {"place": SCHEDULES, "title": "Schedules", "lead": lead, "parts": parts}

        return view_page(SCREEN, shared, request, values)

    @site.post(SCHEDULES, response_class=HTMLResponse)
    async def schedule_form(shared: Site, request: Request) -> Response:
        fields = await form_of(request, shared)
        act = one_of(fields, "act", ACTS)

        def perform() -> None:
            with shared.view("") as view:
                named = [row for row in shared.reading.schedules(view) if row.schedule == fields.get("schedule")]
            if not named:
                raise NotFoundError("there is no such schedule")
            state = shared.writing.get(named[0].run_id).state
            message = operations.signal_message(state.run_id, act, {}, actor=shared.actor)
            word = operations.word(state, act, By(shared.actor, "", sign=shared.sign)) if act != "trigger" else None
            shared.writing.perform(word or operations.update(state, message), DEFAULT_WAIT_S)

        await run_in_threadpool(perform)
        return RedirectResponse(SCHEDULES, 303)

    @site.get("/versions", response_class=HTMLResponse)
    def versions_page(shared: Site) -> HTMLResponse:
        agents, tools = served_of(shared)
        with shared.view("") as view:
            needed = version_rows(view, agents)
        needs = grid_of(
            "needed",
            "Versions that runs need",
            needed,
            "Agent; Version code version; Runs that go on num live; Planners; Such as",
            {
                "Agent": lambda row: Cell(row.agent, href=url("/", agent=row.agent)),
                "Planners": lambda row: Cell("served" if row.members else "nobody has it", note=", ".join(row.members)),
                "Such as": lambda row: Cell(row.runs[0], "code", href=f"/runs/{row.runs[0]}"),
            },
            empty="No run goes on, so none needs a version.",
        )
        parts = [needs, _agents_grid(agents), _tools_grid(tools), _halts_grid(shared)]
        lead = "Without a planner that has its version, a run goes on with the newest one where that agrees, or stalls."
        return html_page(SCREEN, shared, place="/versions", title="Versions and halts", lead=lead, parts=parts)

    @site.get("/health")
    def health_page() -> RedirectResponse:
        """Redirect from the address until 0.2."""
        return RedirectResponse("/workers", 308)

    @site.get("/workers", response_class=HTMLResponse)
    def workers_page(shared: Site) -> HTMLResponse:
        health, address = health_of(shared), public_url(shared.platform.settings.views.url)
        facts = (("Views", health.views), ("Kafka", health.kafka), ("Database of the views", address))
        rows = [[Cell(name), Cell(text)] for name, text in facts]
        parts = [
            *_grids_or_error("workers", _workers_grids, shared),
            Grid("health", "Gateway", ("Part", "State"), rows, ""),
            *_grids_or_error("projections", lambda shared: [_projections_grid(shared)], shared),
            *_grids_or_error("halts", lambda shared: [_halts_grid(shared)], shared),
        ]
        lead = "Any SQL client reads the views at their address, with a user of its own."
        return html_page(SCREEN, shared, place="/workers", title="Workers", lead=lead, parts=parts)


def _letters_grid(shared: Gateway, view: ViewReader, filters: LetterFilter) -> Grid:
    rows = shared.reading.letters(view, filters)
    return grid_of(
        "letters",
        "Dead letters",
        rows,
        "Time at at_ms; Code; Reason text reason; Refused by text service; Input code lies; Letter",
        {
            "Code": lambda row: Cell(row.code, href=url(LETTERS, code=row.code)),
            "Letter": lambda row: Cell(row.letter, "code", href=f"{LETTERS}/{row.letter}"),
        },
        empty="Nothing was refused. An input that no service can use appears here with the reason; the same list:",
        command="refold deadletter list",
        note=f"the latest {filters.limit}" if len(rows) == filters.limit else "",
    )


def _schedules_grid(rows: list[ScheduleRow]) -> Grid:
    return grid_of(
        "schedules",
        "Schedules",
        rows,
        "Schedule; Status status status; Agent; When; Next; Last; Started num started; Skipped num skipped",
        {
            "Schedule": lambda row: Cell(row.schedule, href=f"/runs/{row.run_id}"),
            "Agent": lambda row: Cell(row.agent, href=url("/", label=f"{LABEL}={row.schedule}")),
            "When": lambda row: Cell(row.when, note=row.zone),
            "Next": lambda row: Cell(next(iter(row.next), ""), note=", ".join(row.next[1:])),
            "Last": lambda row: (
                Cell(row.outcomes[-1]["status"], "status", note=row.outcomes[-1]["tick"]) if row.outcomes else Cell("")
            ),
        },
        empty="No agent runs by the clock. app.every(...) declares it, and this begins it:",
        command="refold schedule apply --app app.py",
    )


def _grids_or_error(name: str, grids: Callable[[Gateway], list[Grid]], shared: Gateway) -> list[Grid]:
    try:
        return grids(shared)
    except RefoldError as error:
        return [Grid(name, name.capitalize(), (), (), f"{error.message}.", error.hint)]


def _members_cell(row: AgentServed | ToolServed) -> Cell:
    return Cell(len(row.members), "num", note=", ".join(member.shown for member in row.members))


def _agents_grid(agents: list[AgentServed]) -> Grid:
    empty, command = "Planners report here which agents they have:", "refold serve planner --app app.py"
    columns = "Agent text agent; Version code version; Planners"
    return grid_of("agents", "Agents", agents, columns, {"Planners": _members_cell}, empty=empty, command=command)


def _tools_grid(tools: list[ToolServed]) -> Grid:
    return grid_of(
        "tools",
        "Tools",
        tools,
        "Tool; Version code version; Pool text pool; Effect; Executors",
        {
            "Tool": lambda row: Cell(row.tool, href=url("/", tool=row.tool), note=", ".join(row.tags)),
            "Effect": lambda row: Cell(row.effect, note="always asks people" if row.approval else ""),
            "Executors": _members_cell,
        },
        empty="Executors report here which tools they run:",
        command="refold serve executor --app app.py",
    )


def _halts_grid(shared: Gateway) -> Grid:
    rows = [[Cell(row.what), Cell(row.reason or "none given")] for row in halt_rows(catalog_of(shared).halts)]
    empty = "Nothing is halted. All calls of a tool, agent, pool or requester wait after"
    return Grid("halts", "Halts", ("Halted", "Reason"), rows, empty, "refold halt --tool NAME --reason WHY")


def _workers_grids(shared: Gateway) -> list[Grid]:
    workers = workers_of(shared)
    groups = grid_of(
        "groups",
        "Services",
        workers.groups,
        "Service text name; Alive; Unserved; Waiting num waiting; Oldest; Lag",
        {
            "Alive": lambda row: Cell("missing", "status", note=row.command) if row.missing else Cell(row.members),
            "Unserved": lambda row: Cell(", ".join(map(str, row.unserved)) if row.needed else ""),
            "Oldest": lambda row: Cell(row.oldest_s * 1000 if row.waiting else "", "took"),
            "Lag": lambda row: Cell(sum(row.lag.values()), "num", note=", ".join(sorted(filter(row.lag.get, row.lag)))),
        },
        note="partitions that nobody serves, and requests, calls or questions that nobody has taken",
    )
    rows = grid_of(
        "workers",
        "Workers",
        workers.workers,
        "Worker; State; Pool text pool; Partitions; Slots text load; Serves; Started at started_ms; Seen at seen_ms",
        {
            "Worker": lambda row: Cell(row.member, note=f"{row.role} {row.host}".strip()),
            "State": lambda row: Cell("alive" if row.alive else "gone", "text" if row.alive else "status"),
            "Partitions": lambda row: Cell(", ".join(map(str, row.partitions)) or ("in reserve" if row.alive else "")),
            "Serves": lambda row: Cell(len(row.versions), "num", note=", ".join(row.versions)),
        },
        empty="Planners and executors appear here once they run:",
        command="refold serve planner --app app.py",
        note="a worker that was killed leaves its group within seconds; its last report stays for eight days",
    )
    return [groups, rows]


def _projections_grid(shared: Gateway) -> Grid:
    return grid_of(
        "projections",
        "Projections",
        [(info.projection, generation) for info in projections_of(shared) for generation in info.generations],
        "Projection; State; Behind; Records a second; Compare with the log",
        {
            "Projection": lambda row: Cell(row[0], note=f"generation {row[1].generation}, version {row[1].version}"),
            "State": lambda row: Cell(row[1].state, note=row[1].reason.partition("\n")[0]),
            "Behind": lambda row: Cell(row[1].lag, "num", note=f"records, {row[1].left_s:g} s to go"),
            "Records a second": lambda row: Cell(round(row[1].rate), "num"),
            "Compare with the log": lambda row: Cell(f"refold projection verify {row[0]}", "code"),
        },
        empty="Projections appear here once something builds them:",
        command="refold serve projections",
    )
