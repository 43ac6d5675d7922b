"""Lists: sessions, sums, actions of operators, dead letters, limits, and deployed services."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from refold.client.catalog import HaltRow, halt_rows
from refold.client.letters import Letter, WholeLetter, find_letter, replayed, whole_letter
from refold.client.operations.runs import RunQuery
from refold.client.operations.workers import Served
from refold.client.reading import api
from refold.client.reading.budget import LimitInUse
from refold.client.reading.member import AgentServed, ToolServed, Workers
from refold.client.reading.projection import ProjectionInfo
from refold.client.schedules import ScheduleRow
from refold.console.gateway.listing import session_page, version_rows
from refold.console.gateway.routes.runs import query_of
from refold.console.gateway.site import AfterHeader, Gateway, Site
from refold.console.projections.status import status_of
from refold.core.approval.catalog import Catalog
from refold.core.errors import NotFoundError, UnreachableError, UsageError
from refold.engine.adapters.kafka.source import KafkaLogSource

JSON_LINES = "application/jsonl"
MOST_EXPORTED = 50_000
"""Actions of operators in a file: some 15 MB."""
LetterPlace = Annotated[str, Path(description="`[SERVICE/]PARTITION/OFFSET`, as lists have it")]


def list_routes(site: APIRouter) -> None:
    @site.get("/api/sessions", summary="List sessions")
    def list_sessions(
        shared: Site, filters: Annotated[api.CursorFilter, Query()], after: AfterHeader = ""
    ) -> api.SessionPage:
        """Return sessions, the one with the latest request first."""
        with shared.view(after) as view:
            return session_page(view, filters)

    @site.get("/api/sessions/{session:path}", summary="List the runs of a session")
    def show_session(
        shared: Site, session: str, filters: Annotated[api.RunFilter, Query()], after: AfterHeader = ""
    ) -> api.RunPage:
        """Return the runs of a session, the newest first, with the filters of all runs."""
        inside = filters.model_copy(update={"session": session})
        with shared.view(after) as view:
            page = shared.reading.runs(view, query_of(inside), filters.cursor)
            if not page.runs and not shared.reading.runs(view, RunQuery(session=session, limit=1), "").runs:
                raise NotFoundError(f"no run is part of the session {session[:100]!r}")
        return page

    @site.get("/api/daily", summary="List sums by day")
    def list_daily(
        shared: Site, filters: Annotated[api.DailyFilter, Query()], after: AfterHeader = ""
    ) -> list[api.DailyRow]:
        """Return calls, failures, effects avoided, tokens and cost by day, agent, tool and model, the latest first."""
        with shared.view(after) as view:
            return shared.reading.daily(view, filters)

    @site.get("/api/operator-actions", summary="List operator actions")
    def list_operator_actions(
        shared: Site, filters: Annotated[api.ActionFilter, Query()], after: AfterHeader = ""
    ) -> list[api.OperatorAction]:
        """Return cancels, pauses, resumes, retries, resolutions and migrations with actor and reason, latest first."""
        with shared.view(after) as view:
            return shared.reading.actions(view, filters)

    @site.get("/api/schedules", summary="List schedules")
    def list_schedules(shared: Site, after: AfterHeader = "") -> list[ScheduleRow]:
        """Return the schedules by name, with their next ticks and last runs. They are runs: updates and pauses too."""
        with shared.view(after) as view:
            return shared.reading.schedules(view)

    lines: dict[str, Any] = {"response_class": Response, "responses": {200: {"content": {JSON_LINES: {}}}}}

    @site.get("/api/operator-actions.jsonl", summary="Export operator actions", **lines)
    def export_operator_actions(
        shared: Site, filters: Annotated[api.ActionFilter, Query()], after: AfterHeader = ""
    ) -> Response:
        """Return the same rows as JSON Lines: without a `limit` the latest 50,000; `since_ms` selects others."""
        many = filters if "limit" in filters.model_fields_set else filters.model_copy(update={"limit": MOST_EXPORTED})
        with shared.view(after) as view:
            rows = shared.reading.actions(view, many)
        return Response("".join(f"{row.model_dump_json()}\n" for row in rows), media_type=JSON_LINES)

    @site.get("/api/dead-letters", summary="List dead letters")
    def list_letters(
        shared: Site, filters: Annotated[api.LetterFilter, Query()], after: AfterHeader = ""
    ) -> list[Letter]:
        """Return inputs that no service could use, with the reason, the latest first."""
        with shared.view(after) as view:
            return shared.reading.letters(view, filters)

    @site.post("/api/dead-letters/{place:path}/replay", summary="Send a refused input again")
    def replay_letter(
        shared: Site, place: LetterPlace, dry_run: Annotated[bool, Query(description="send nothing")] = False
    ) -> api.InputReplayed:
        """Publish the input of a dead letter again, from its topic, to the partition where it belongs."""
        return replay_of(shared, place, dry_run=dry_run)

    @site.get("/api/dead-letters/{place:path}", summary="Show a dead letter")
    def show_letter(shared: Site, place: LetterPlace) -> WholeLetter:
        """Return a dead letter with its input, by its position. It is read from Kafka, which keeps it for 14 days."""
        return whole_letter(place, find_letter(shared.platform.runs.reader, place))

    @site.get("/api/limits", summary="List limits per day and month")
    def list_limits(shared: Site, after: AfterHeader = "") -> list[LimitInUse]:
        """Return the spending under limits per day and month, the newest windows first."""
        with shared.view(after) as view:
            return shared.reading.limits(view)

    @site.get("/api/agents", summary="List the agents that planners have")
    def list_agents(shared: Site) -> list[AgentServed]:
        """Return versions of agents with the planners that report them. They are read from Kafka."""
        return served_of(shared).agents

    @site.get("/api/tools", summary="List the tools that executors run")
    def list_tools(shared: Site) -> list[ToolServed]:
        """Return tools by pool with the executors that report them. They are read from Kafka."""
        return served_of(shared).tools

    @site.get("/api/versions", summary="List the versions that runs need")
    def list_versions(shared: Site, after: AfterHeader = "") -> list[api.VersionRow]:
        """Return the versions that live runs need. The planners that have them are read from Kafka."""
        serving = served_of(shared).agents
        with shared.view(after) as view:
            return version_rows(view, serving)

    @site.get("/api/workers", summary="List workers")
    def list_workers(shared: Site) -> Workers:
        """Return planners, executors and approval services, living and killed, with backlogs, as read from Kafka."""
        return workers_of(shared)

    @site.get("/api/halts", summary="List halts")
    def list_halts(shared: Site) -> list[HaltRow]:
        """Return halted tools, agents, pools and requesters with the reason. They are read from Kafka."""
        return halt_rows(catalog_of(shared).halts)

    @site.get("/api/projections", summary="List projections")
    def list_projections(shared: Site) -> list[ProjectionInfo]:
        """Return projections with their generations and their progress, or the reason why they stopped.

        Progress is compared with Kafka: a projection that lags delays the answer by a second.
        """
        return projections_of(shared)


def served_of(shared: Gateway) -> Served:
    """Return the agents of planners and the tools of executors. **Raises** UnreachableError."""
    with shared.log():
        return shared.platform.served()


def workers_of(shared: Gateway) -> Workers:
    with shared.log():
        return shared.platform.workers()


def catalog_of(shared: Gateway) -> Catalog:
    """Return the catalog in force. **Raises** UnreachableError without it or its root key."""
    with shared.log():
        try:
            return shared.platform.catalog.whole
        except UsageError as error:  # the gateway has no root key: no request can help that
            raise UnreachableError(error.message, hint=error.hint) from None


def projections_of(shared: Gateway) -> list[ProjectionInfo]:
    """Return the progress of each projection. **Raises** UnreachableError."""
    settings, database = shared.platform.settings, shared.database
    with shared.log():
        shared.platform.knock()
        source = KafkaLogSource(settings.kafka)
        return [status_of(name, database, settings.views.url, source) for name in database.projections()]


def replay_of(shared: Gateway, place: str, *, dry_run: bool) -> api.InputReplayed:
    """Send the input of a dead letter again, or only return its partition. **Raises** as `replayed`."""
    record, at = replayed(shared.platform.runs.reader, place)
    if dry_run:
        return api.InputReplayed(sent=False, topic=record.topic, partition=at)
    sent = shared.platform.publisher.send_raw(
        record.topic, at, key=record.key or b"", value=record.value or b"", headers=record.read_headers() or ()
    )
    return api.InputReplayed(sent=True, topic=record.topic, partition=sent[0], offset=sent[1])
