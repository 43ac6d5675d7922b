"""Dead letters, versions and health: what services report, partly out of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from refold.client.letters import find_letter
from refold.core.errors import RefoldError
from refold.core.redaction import public_url
from refold.gateway.listing import version_rows
from refold.gateway.pages.forms import form_of
from refold.gateway.pages.rendering import html_page, view_page
from refold.gateway.pages.screen import SCREEN, AskForm, Cell, Grid, Passage, url
from refold.gateway.roles import ROUTE_ROLES
from refold.gateway.routes.health import health_of
from refold.gateway.routes.lists import catalog_of, projections_of, replay_of, served_of
from refold.gateway.site import Gateway, Site
from refold.ports.tables import ViewReader
from refold.views.api import ApiBody, LetterFilter
from refold.views.halt import halt_rows
from refold.views.letter import whole_letter
from refold.views.member import AgentServed, ServedBy, ToolServed

LETTERS = "/dead-letters"
HEX_SHOWN = 2_000
"""Digits of an input in hex; the API has all of them."""


class ShownLetter(ApiBody):
    """The part of a dead letter that is shown: its input, what a replay would do, and where one was sent."""

    whole: bool = False
    dry_run: bool = False
    sent: str = Field("", pattern=r"^([a-z-]{1,40}/[0-9]{1,9}/[0-9]{1,18})?$")


def deployed_pages(site: APIRouter) -> None:
    """Add the pages and the form."""

    @site.get(LETTERS, response_class=HTMLResponse)
    def letters_page(shared: Site, request: Request, wanted: Annotated[LetterFilter, Query()]) -> Response:
        """Inputs that no service could use, the latest first."""

        def made(view: ViewReader) -> dict[str, Any]:
            chosen = wanted.model_dump(exclude_defaults=True)
            lead = (
                "Inputs that no service could use. None of them is lost: each lies in its topic, and can be replayed."
            )
            actions = [("Show all", LETTERS)] if chosen else []
            parts = [_letters(shared, view, wanted)]
            return {"place": LETTERS, "title": "Dead letters", "lead": lead, "actions": actions, "parts": parts}

        return view_page(SCREEN, shared, request, made)

    @site.get(f"{LETTERS}/{{place:path}}", response_class=HTMLResponse)
    def letter_page(shared: Site, place: str, wanted: Annotated[ShownLetter, Query()]) -> HTMLResponse:
        """A dead letter out of Kafka; on request with its input, or with what a replay would do."""
        role = ROUTE_ROLES["replay_form"]
        if wanted.dry_run:  # it reads a whole partition
            shared.check_role(role)
        with shared.log() as runs:
            content = find_letter(runs.reader, place)
            letter = whole_letter(place, content)
            goes = replay_of(shared, place, dry_run=True) if wanted.dry_run else None
        here = f"{LETTERS}/{letter.letter}"
        facts = (
            *(("Reason", letter.reason), ("Code", letter.code), ("Refused by", letter.service)),
            *(("Input lies in", letter.lies), ("Key", letter.key), ("Size", f"{len(content.value)} bytes")),
        )
        rows = [[Cell(name), Cell(said)] for name, said in facts]
        parts: list[object] = [Grid("facts", "What was refused", ("Fact", "Value"), rows, "")]
        if wanted.sent:
            parts.insert(0, Passage("sent", "The input was sent again", f"It lies in {wanted.sent}."))
        if goes is not None:
            says = (
                f"Nothing was sent. The replay writes the same {len(content.value)} bytes under the same key to "
                f"{goes.topic}, partition {goes.partition}. The run that they are for takes them as if they came now; "
                "one that has them already ignores them."
            )
            parts.append(AskForm("replay", "Replay this input?", f"{here}/replay", (), "Replay", says, back=here))
        if wanted.whole:
            parts += [
                Passage("value", "Input", letter.value, href=f"/api{here}"),
                Passage("hex", "Input in hex", letter.value_hex[:HEX_SHOWN], "its beginning"),
            ]
        links = [("Show the input", f"{here}?whole=true")]
        if shared.login is None or shared.login.may(role):
            links.append(("Replay: try it first", f"{here}?dry_run=true#replay"))
        heading = f"Dead letter {letter.letter}"
        return html_page(
            SCREEN, shared, place=LETTERS, title="Dead letter", heading=heading, actions=links, parts=parts
        )

    @site.post(f"{LETTERS}/{{place:path}}/replay", response_class=HTMLResponse)
    async def replay_form(shared: Site, place: str, request: Request) -> Response:
        """Send the input of a dead letter again, as it still lies in its topic."""
        await form_of(request, shared)
        done = await run_in_threadpool(replay_of, shared, place, dry_run=False)
        return RedirectResponse(f"{LETTERS}/{place}?sent={done.topic}/{done.partition}/{done.offset}", 303)

    @site.get("/versions", response_class=HTMLResponse)
    def versions_page(shared: Site) -> HTMLResponse:
        """Versions that runs need, who has which, and what is halted."""
        agents, tools = served_of(shared)
        with shared.view("") as view:
            needed = version_rows(view, agents)
        rows = [
            [
                Cell(each.agent, href=url("/", agent=each.agent)),
                Cell(each.version, "code"),
                Cell(each.live, "num"),
                Cell("served" if each.members else "nobody has it", note=", ".join(each.members)),
                Cell(each.runs[0], "code", href=f"/runs/{each.runs[0]}"),
            ]
            for each in needed
        ]
        heads = ("Agent", "Version", "Runs that go on", "Planners", "Such as")
        empty = "No run goes on, so none needs a version."
        needs = Grid("needed", "Versions that runs need", heads, rows, empty)
        parts = [needs, _agents_had(agents), _tools_run(tools), _halts(shared)]
        lead = "Without a planner that has its version, a run goes on with the newest one where that agrees, or stalls."
        return html_page(SCREEN, shared, place="/versions", title="Versions and halts", lead=lead, parts=parts)

    @site.get("/health", response_class=HTMLResponse)
    def health_page(shared: Site) -> HTMLResponse:
        """The state of the views, of Kafka, of services and of projections."""
        health, address = health_of(shared), public_url(shared.platform.settings.views.url)
        facts = (("Views", health.views), ("Kafka", health.kafka), ("Database of the views", address))
        rows = [[Cell(name), Cell(said)] for name, said in facts]
        parts = [
            Grid("health", "Gateway", ("Part", "State"), rows, ""),
            _reported("projections", "Projections", lambda: _projections(shared)),
            _reported("members", "Services", lambda: _members(shared)),
            _reported("halts", "Halts", lambda: _halts(shared)),
        ]
        lead = "Any SQL client reads the views at their address, with a user of its own."
        return html_page(SCREEN, shared, place="/health", title="Health", lead=lead, parts=parts)


def _letters(shared: Gateway, view: ViewReader, wanted: LetterFilter) -> Grid:
    found = shared.reading.letters(view, wanted)
    rows = [
        [
            Cell(each.at_ms, "at"),
            Cell(each.code, href=url(LETTERS, code=each.code)),
            Cell(each.reason),
            Cell(each.service),
            Cell(each.lies, "code"),
            Cell(each.letter, "code", href=f"{LETTERS}/{each.letter}"),
        ]
        for each in found
    ]
    return Grid(
        "letters",
        "Dead letters",
        ("Time", "Code", "Reason", "Refused by", "Input", "Letter"),
        rows,
        "Nothing was refused. An input that no service can use appears here with the reason; the same list:",
        "refold deadletter list",
        note=f"the latest {wanted.limit}" if len(rows) == wanted.limit else "",
    )


def _reported(name: str, caption: str, made: Callable[[], Grid]) -> Grid:
    """A table out of Kafka; while that is away, why it is empty."""
    try:
        return made()
    except RefoldError as error:
        return Grid(name, caption, (), (), f"{error.message}.", error.hint)


def _by(members: list[ServedBy]) -> Cell:
    return Cell(len(members), "num", note=", ".join(each.member for each in members))


def _agents_had(agents: list[AgentServed]) -> Grid:
    rows = [[Cell(each.agent), Cell(each.version, "code"), _by(each.members)] for each in agents]
    empty = "Planners report here which agents they have:"
    return Grid("agents", "Agents", ("Agent", "Version", "Planners"), rows, empty, "refold serve planner --app app.py")


def _tools_run(tools: list[ToolServed]) -> Grid:
    rows = [
        [
            Cell(each.tool, href=url("/", tool=each.tool), note=", ".join(each.tags)),
            Cell(each.version, "code"),
            Cell(each.pool),
            Cell(each.effect, note="always asks people" if each.approval else ""),
            _by(each.members),
        ]
        for each in tools
    ]
    heads, empty = ("Tool", "Version", "Pool", "Effect", "Executors"), "Executors report here which tools they run:"
    return Grid("tools", "Tools", heads, rows, empty, "refold serve executor --app app.py")


def _halts(shared: Gateway) -> Grid:
    rows = [[Cell(each.what), Cell(each.reason or "none given")] for each in halt_rows(catalog_of(shared).halts)]
    empty = "Nothing is halted. All calls of a tool, agent, pool or requester wait after"
    return Grid("halts", "Halts", ("Halted", "Reason"), rows, empty, "refold halt tool NAME --reason WHY")


def _members(shared: Gateway) -> Grid:
    agents, tools = served_of(shared)
    serves: dict[ServedBy, list[str]] = {}
    for kind, found in (("agent", agents), ("tool", tools)):
        for each in found:
            for member in each.members:
                serves.setdefault(member, []).append(getattr(each, kind))
    rows = [
        [
            Cell(by.member),
            Cell(len(names), note=", ".join(names)),
            Cell(by.started_ms, "at"),
            Cell(by.reported_ms, "at"),
        ]
        for by, names in serves.items()
    ]
    return Grid(
        "members",
        "Services",
        ("Member", "Agents or tools", "Started", "Reported"),
        rows,
        "Planners and executors appear here once they run:",
        "refold serve planner --app app.py",
        note="each reports once a day; one that was killed stays for eight days",
    )


def _projections(shared: Gateway) -> Grid:
    rows = [[*cells] for each in projections_of(shared) for cells in _generations(each)]
    return Grid(
        "projections",
        "Projections",
        ("Projection", "State", "Behind", "Records a second", "Rows checked against the log"),
        rows,
        "Projections appear here once something builds them:",
        "refold serve projections",
    )


def _generations(info: Any) -> Iterator[list[Cell]]:
    for each in info.generations:
        left = f"{each.left_s:g} s to go" if each.left_s else ""
        yield [
            Cell(info.projection, note=f"generation {each.generation}, version {each.version}"),
            Cell(each.state, note=each.reason.partition("\n")[0]),
            Cell(each.lag, "num", note=left or "records"),
            Cell(round(each.rate), "num"),
            Cell("not by the gateway:", more=[Cell(f"refold projection verify {info.projection}", "code")]),
        ]
