"""The application: its routes, errors, middleware and description."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from anyio.to_thread import current_default_thread_limiter
from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import Lifespan

from refold.console.gateway.guard import SiteGuard
from refold.console.gateway.problems import documented, problem
from refold.console.gateway.rates import DEFAULT_LIMITS, GatewayLimits
from refold.console.gateway.routes import forks, health, inputs, lists, logins, registry, runs, streams
from refold.console.gateway.site import MOST_READS, MOST_WRITES, Gateway, StrictRoute, show_lag
from refold.console.pages import deployed, fork_pages, inbox, policy_pages, records, run_list, run_page, site_pages
from refold.core.errors import RefoldError

ROUTES = (
    runs.run_routes,
    forks.fork_routes,
    streams.stream_routes,
    inputs.input_routes,
    lists.list_routes,
    registry.registry_routes,
    logins.login_routes,
    health.health_routes,
)
PAGES = (
    run_list.run_list_pages,
    fork_pages.fork_pages,
    run_page.run_pages,
    inbox.inbox_pages,
    records.record_pages,
    deployed.deployed_pages,
    policy_pages.policy_pages,
    site_pages.site_pages,
)


class Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = documented(super().openapi())
        return self.openapi_schema


def build_api(gateway: Gateway) -> Api:
    """Return the application; its lifespan opens and closes the gateway."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Gateway]]:
        # A write waits in a thread for its outcome: as many as there may be leave room for all reads.
        current_default_thread_limiter().total_tokens = MOST_READS + MOST_WRITES + 16
        gateway.refusals.open()
        yield {"gateway": gateway}
        gateway.streams.close()
        gateway.forks.close()
        gateway.refusals.close()
        await gateway.client.close()
        gateway.database.close()

    return routed(lifespan, gateway.hosts, gateway.limits)


def routed(
    lifespan: Lifespan[FastAPI] | None = None, hosts: Iterable[str] = (), limits: GatewayLimits = DEFAULT_LIMITS
) -> Api:
    """Return the application with all routes. Without `lifespan` it can only be described."""
    app = Api(
        title="Refold",
        version="0.1.0",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.add_middleware(SiteGuard, hosts=hosts, body_s=limits.body_s)
    for error in (RefoldError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, problem)
    app.router.routes.extend(_routes())
    return app


@cache
def _routes() -> Sequence[BaseRoute]:
    """Return the routes of all applications of a process: they have no state, and take 0.2 s to make."""
    app = FastAPI(openapi_url=None)
    site = APIRouter(route_class=StrictRoute, redirect_slashes=False, dependencies=[Depends(show_lag)])
    for add in ROUTES:
        add(site)
    pages = APIRouter(route_class=StrictRoute, redirect_slashes=False, include_in_schema=False)
    for add in PAGES:
        add(pages)
    app.include_router(pages)
    app.include_router(site, generate_unique_id_function=lambda route: route.name)
    return app.router.routes
