"""`refold serve projections`."""

from __future__ import annotations

from typing import Annotated

import structlog
import typer

from refold.adapters.kafka.source import KafkaLogSource
from refold.cli.apps import load_app
from refold.cli.commands.serve.process import CLOSE_S, DevOption, Member, ends_within, served
from refold.client.views import views
from refold.projections.service import KeptProjection, keep_all, shipped

_log = structlog.get_logger()


def projections(
    *,
    app: Annotated[str, typer.Option(help="MODULE:APP or path/file.py[:APP], for projections of an app.")] = "",
    member: Member = "",
    data: DevOption = "",
) -> None:
    """Keep tables up to date with the log: those that Refold ships, and an app's. The database is REFOLD_VIEWS__URL."""
    process = served("projections", member, data)
    database = views(process.where.settings)
    source = KafkaLogSource(process.where.settings.kafka)
    loaded = load_app(app) if app else None
    own = [found() for found in loaded.projections.values()] if loaded else []
    ours = shipped(loaded.prices.own if loaded else None)
    kept = [KeptProjection(each, database, source) for each in (*ours, *own)]
    with ends_within(CLOSE_S) as asked:
        _log.info("service.started", service="projections", projections=[each.name for each in kept])
        keep_all(kept, asked.is_set)
    database.close()
    _log.info("service.stopped", service="projections")
