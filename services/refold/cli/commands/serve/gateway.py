"""`refold serve gateway`."""

from __future__ import annotations

from typing import Annotated

import structlog

from refold.cli.commands.serve.process import DevOption, Member, served
from refold.client.addresses import on_loopback
from refold.client.awaiting import AsyncClient
from refold.client.platform import Platform, login
from refold.client.views import views
from refold.core.errors import UsageError, not_installed

try:
    import uvicorn
except ModuleNotFoundError as missing:
    raise not_installed(missing) from None

from refold.gateway.app import build_api
from refold.gateway.connections import TimedProtocol
from refold.gateway.site import Gateway

_log = structlog.get_logger()

STREAMS_END_S = 1
"""RunStreams never end by themselves: how long they may go on when the process is told to end."""


def gateway(
    *,
    host: Annotated[str, "HOST", "Address to listen at.  \\[default: REFOLD_GATEWAY__HOST, 127.0.0.1]"] = "",
    port: Annotated[int, "PORT", "Port to listen at.  \\[default: REFOLD_GATEWAY__PORT, 8321]"] = 0,
    actor: Annotated[str, "Name in which runs are asked for and decided.  \\[default: your login]"] = "",
    member: Member = "",
    data: DevOption = "",
) -> None:
    """Serve the HTTP API over the views of REFOLD_VIEWS__URL, which `refold serve projections` keeps up to date."""
    process = served("gateway", member, data)
    settings = process.where.settings
    at, number = host or settings.gateway.host, port or settings.gateway.port
    if not on_loopback(f"{at}:{number}"):
        hint = "listen at 127.0.0.1, and put a proxy that knows its users in front"
        raise UsageError(f"{at} is reached from other machines, and the gateway asks nobody who they are", hint=hint)
    name = actor or login()
    platform = Platform(process.where, source="refold-gateway")
    shared = Gateway(platform, views(settings), name, AsyncClient(data=data, actor=name))
    _log.info("service.started", service="gateway", url=f"http://{at}:{number}", actor=name)
    config = uvicorn.Config(
        build_api(shared),
        host=at,
        port=number,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=STREAMS_END_S,
        server_header=False,
        backlog=2_048,
        http=TimedProtocol,
    )
    uvicorn.Server(config).run()
    _log.info("service.stopped", service="gateway")
