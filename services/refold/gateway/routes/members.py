"""What is deployed: what members serve, which versions runs need, what is halted, how far projections are."""

from __future__ import annotations

from fastapi import APIRouter

from refold.adapters.kafka.source import KafkaLogSource
from refold.core.errors import UnreachableError, UsageError
from refold.core.topics import MEMBER
from refold.gateway.listing import version_rows
from refold.gateway.site import AfterHeader, Site
from refold.projections.status import status_of
from refold.views.api import VersionRow
from refold.views.halt import HaltRow, halt_rows
from refold.views.member import AgentServed, ToolServed, agents_served, tools_served
from refold.views.projection import ProjectionInfo


def add(site: APIRouter) -> None:
    """Add the routes."""
    get = site.get

    @get("/api/agents", summary="List the agents that planners have")
    def list_agents(shared: Site) -> list[AgentServed]:
        """Versions of agents, each with the planners that report to have it. It is read from Kafka."""
        with shared.log() as runs:
            return agents_served(runs.reader.scan(MEMBER))

    @get("/api/tools", summary="List the tools that executors run")
    def list_tools(shared: Site) -> list[ToolServed]:
        """Tools by pool, each with the executors that report to run it. It is read from Kafka."""
        with shared.log() as runs:
            return tools_served(runs.reader.scan(MEMBER))

    @get("/api/versions", summary="List the versions that runs need")
    def list_versions(shared: Site, after: AfterHeader = "") -> list[VersionRow]:
        """Versions with runs that go on, and the planners that have them, which are read from Kafka."""
        with shared.log() as runs:
            serving = agents_served(runs.reader.scan(MEMBER))
        with shared.view(after) as view:
            return version_rows(view, serving)

    @get("/api/halts", summary="List what is halted")
    def list_halts(shared: Site) -> list[HaltRow]:
        """Tools, agents, pools and requesters whose calls wait, and why. It is read from Kafka."""
        with shared.log():
            try:
                return halt_rows(shared.platform.catalog.whole.halts)
            except UsageError as error:  # the gateway has no root key: no request can help that
                raise UnreachableError(error.message, hint=error.hint) from None

    @get("/api/projections", summary="List projections")
    def list_projections(shared: Site) -> list[ProjectionInfo]:
        """Projections: their generations, how far each is, or why it stands still. One that is behind takes a second.

        It is compared with Kafka.
        """
        settings, database = shared.platform.settings, shared.database
        with shared.log():
            source = KafkaLogSource(settings.kafka)
            return [status_of(name, database, settings.views.url, source) for name in database.projections()]
