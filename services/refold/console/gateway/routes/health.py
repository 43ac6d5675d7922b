"""Health of the process and its dependencies."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from refold.client.reading.api import Alive, Health
from refold.console.gateway.site import Gateway, Site
from refold.core.errors import RefoldError


def health_routes(site: APIRouter) -> None:
    @site.get("/healthz", summary="Show if the process lives")
    async def health() -> Alive:
        """Return true if the process answers."""
        return Alive(ok=True)

    @site.get(
        "/readyz", summary="Show if the gateway can answer", response_model=Health, responses={503: {"model": Health}}
    )
    def ready(shared: Site) -> JSONResponse:
        """Return 200 if the gateway reads Kafka and its views are readable and current, else 503 with the problem."""
        report = health_of(shared)
        headers = {} if report.ready else {"Retry-After": "1"}
        return JSONResponse(report.model_dump(), 200 if report.ready else 503, headers)


def health_of(shared: Gateway) -> Health:
    views, away = "ok", shared.writing.away
    kafka = "not heard" if away and not shared.writing.listens else away or "ok"
    try:
        views = shared.writing.stands_still(shared.reading.store().notes()) or views
    except RefoldError as error:
        views = error.message
    if shared.login is None:  # the reasons name servers
        views = views if views == "ok" else "not ok"
    return Health(ready=views == kafka == "ok", views=views, kafka=kafka)
