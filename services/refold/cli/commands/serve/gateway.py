"""`refold serve gateway`."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated

import structlog
import uvicorn

from refold.cli.commands.serve.process import CLOSE_S, DevOption, Member, Served, check_homes, served
from refold.cli.commands.serve.projections import keep_views, view_metrics
from refold.client.awaiting import AsyncClient
from refold.client.platform import Platform, login
from refold.console.gateway.app import build_api
from refold.console.gateway.forks import ForkRoom
from refold.console.gateway.guard import TimedProtocol
from refold.console.gateway.logins import Logins
from refold.console.gateway.routes.health import health_of
from refold.console.gateway.site import Gateway
from refold.console.projections.views import views
from refold.core.approval.signature import REQUEST
from refold.core.errors import UsageError
from refold.core.topics import RUN_LOG
from refold.dev.files import FolderLock
from refold.engine.runtime.addresses import data_dir, on_loopback, own_key
from refold.engine.runtime.gauges import Vitals
from refold.engine.runtime.settings import GatewayPart, Settings

_log = structlog.get_logger()

# Streams never end by themselves, and by default uvicorn waits for them without limit.
STREAMS_END_S = 1


def gateway(
    *,
    host: Annotated[str, "HOST", "Address to listen at.  \\[default: REFOLD_GATEWAY__HOST, 127.0.0.1]"] = "",
    port: Annotated[int, "PORT", "Port to listen at.  \\[default: REFOLD_GATEWAY__PORT, 8321]"] = 0,
    app: Annotated[str, "APP", "App with projections and with code for forks: MODULE:APP or path/file.py[:APP]."] = "",
    actor: Annotated[str, "Name of the only user, if no login is configured.  \\[default: your login]"] = "",
    member: Member = "",
    data: DevOption = "",
) -> None:
    """Serve the HTTP API over the views of REFOLD_VIEWS__URL.

    It keeps views in SQLite up to date itself, unless another process does. `refold serve projections` keeps those in
    Postgres.
    """
    process = served("gateway", member, data)
    # The setting alone would let any gateway act as other persons; `refold dev` holds the lock of its folder.
    dev = FolderLock(data_dir(data) / "lock").holder() == os.getppid()
    serve_gateway(process, app, data, place=(host, port), actor=actor, dev=dev)


def serve_gateway(
    process: Served, app: str, data: str, *, place: tuple[str, int] = ("", 0), actor: str = "", dev: bool = False
) -> None:
    """Serve until a stop signal, in a thread beside other services until the process ends. `dev`: of `refold dev`."""
    settings, (host, port) = process.where.settings, place
    if settings.gateway.people and not dev:
        hint = "leave REFOLD_GATEWAY__PEOPLE out, and have people log in: REFOLD_GATEWAY__API_KEYS, __OIDC or __PROXY"
        raise UsageError("pages act as other persons under `refold dev` alone, which has not started this", hint=hint)
    check_homes(process.where.settings.kafka, RUN_LOG)
    at, number = (host or settings.gateway.host).strip("[]"), port or settings.gateway.port
    address = f"[{at}]:{number}" if ":" in at else f"{at}:{number}"
    part, name = settings.gateway, actor or login()
    logins = Logins(part, name)
    if not on_loopback(address):
        _check_open(at, logins, part)
    if actor and not logins.local:
        raise UsageError("--actor names the one user there is without logins", hint="leave it out: they have names")
    platform = Platform(process.where, source="refold-gateway")
    client = AsyncClient(data=data, actor=name, vote_key=part.vote_key)
    key, forks = own_key(REQUEST, part.request_key, data), ForkRoom(app)
    shared = Gateway(platform, views(settings), logins, client, key, forks, str(data_dir(data)), dev)
    who = f"{name} alone" if logins.local else "logins"
    _log.info("service.started", service="gateway", url=f"http://{address}", who=who)
    config = uvicorn.Config(
        build_api(shared),
        host=at,
        port=number,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=STREAMS_END_S,
        server_header=False,
        proxy_headers=False,  # the peer is the connected address, not a header's
        backlog=2_048,
        http=TimedProtocol,
    )
    vitals, keeps = Vitals(ask=lambda: health_of(shared).lacks), settings.views.url.startswith("sqlite:")
    beside = _beside(settings, app) if keeps else nullcontext()
    with process.shown(vitals, *(view_metrics(settings) if keeps else ())), beside:
        Listening(config, vitals).run()
    _log.info("service.stopped", service="gateway")


def _check_open(host: str, logins: Logins, part: GatewayPart) -> None:
    """Check that other machines need a login and a known host name. **Raises** UsageError."""
    if logins.local:
        hint = "listen at 127.0.0.1, or set REFOLD_GATEWAY__API_KEYS, __OIDC or __PROXY"
        raise UsageError(f"{host} is reached from other machines, and the gateway asks nobody who they are", hint=hint)
    if not part.hosts:
        hint = """set REFOLD_GATEWAY__HOSTS='["refold.example"]'"""
        raise UsageError(f"{host} is reached from other machines, and no name of it is known", hint=hint)


class Listening(uvicorn.Server):
    """HTTP server that reports itself alive with each turn of its loop."""

    def __init__(self, config: uvicorn.Config, vitals: Vitals) -> None:
        super().__init__(config)
        self._vitals = vitals

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second; requests run between two calls."""
        self._vitals.stand("")
        self._vitals.begin_turn(time.monotonic())
        return await super().on_tick(counter)


@contextmanager
def _beside(settings: Settings, app: str) -> Iterator[None]:
    """Context in which a thread keeps the views up to date; if it fails, SIGTERM ends the server."""
    stop = threading.Event()

    def update_views() -> None:
        try:
            keep_views(settings, app, stop.is_set, Vitals())
        except BaseException:
            # Stale views would go unnoticed.
            os.kill(os.getpid(), signal.SIGTERM)
            raise

    thread = threading.Thread(target=update_views, name="projections", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(CLOSE_S)
