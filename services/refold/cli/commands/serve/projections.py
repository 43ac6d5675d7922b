"""`refold serve projections`."""

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import structlog

from refold.cli.apps import load_app
from refold.cli.commands.serve.process import CLOSE_S, DevOption, Member, check_homes, ends_within, served
from refold.client.operations.workers import workers
from refold.console.projections.batch import APPLIES
from refold.console.projections.service import KeptProjection, keep_all, shipped
from refold.console.projections.views import views
from refold.core.topics import RUN_LOG, RUN_VIEW
from refold.engine.adapters.kafka.source import KafkaLogSource
from refold.engine.adapters.kafka.writer import TableTopic
from refold.engine.runtime.gauges import Vitals
from refold.engine.runtime.settings import Settings
from refold.engine.runtime.watchdog import Watchdog
from refold.sdk.projection import Projection

_log = structlog.get_logger()


def projections(
    *,
    app: Annotated[str, "APP", "App that defines projections: MODULE:APP or path/file.py[:APP]."] = "",
    member: Member = "",
    data: DevOption = "",
) -> None:
    """Keep tables up to date with the log: those that Refold ships, and an app's. The database is REFOLD_VIEWS__URL."""
    process = served("projections", member, data)
    check_homes(process.where.settings.kafka, RUN_LOG)
    source = KafkaLogSource(process.where.settings.kafka)
    # A consumer that waits for brokers gets nothing, as one that has read everything.
    vitals = Vitals(ask=lambda: "" if source.ends([(RUN_LOG, 0)]) else "Kafka does not answer")
    with ends_within(CLOSE_S) as stop, process.shown(vitals, *view_metrics(process.where.settings)):
        keep_views(process.where.settings, app, stop.is_set, vitals)


def app_projections(app: str) -> tuple[tuple[Projection, ...], list[Projection]]:
    """Projections that Refold ships, with an app's prices, and projections of the app."""
    loaded = load_app(app) if app else None
    own = [build() for build in loaded.projections.values()] if loaded else []
    return shipped(loaded.prices.own if loaded else None), own


def view_metrics(settings: Settings) -> list[Any]:
    if not settings.metrics.address:
        return []
    metrics: Any = import_module("refold.console.projections.metrics")  # it needs the extra
    return [metrics.ViewMetrics(views(settings), KafkaLogSource(settings.kafka), partial(workers, settings.kafka))]


def keep_views(settings: Settings, app: str, stop: Callable[[], bool], vitals: Vitals) -> None:
    """Keep the configured views up to date until `stop`. **Raises** UsageError if none are configured."""
    database, source = views(settings), KafkaLogSource(settings.kafka)
    shipped, own = app_projections(app)
    send = TableTopic(settings.kafka, RUN_VIEW, source.partitions).write if settings.views.run_view else None
    runners = [KeptProjection(p, database, source, send=send if p in shipped else None) for p in (*shipped, *own)]
    _log.info("service.started", service="projections", projections=[runner.name for runner in runners])
    hint = "mend `apply` and give the class a higher `version`, or serve without it"
    watchdog = Watchdog(APPLIES, hint=hint, give_up=lambda *_: None, die=os._exit)
    watchdog.start()
    keep_all(runners, stop, vitals.stand)
    watchdog.stop()
    database.close()
    _log.info("service.stopped", service="projections")
