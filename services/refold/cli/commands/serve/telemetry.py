"""`refold serve telemetry`."""

import os
from typing import Annotated

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from refold.cli.apps import load_app
from refold.cli.commands.serve.process import CLOSE_S, DevOption, Member, ends_within, served
from refold.console.projections.views import views
from refold.console.telemetry.names import OPT_IN, OPTED_IN
from refold.console.telemetry.service import Telemetry, exporting
from refold.console.telemetry.spans import Style, resource_of
from refold.core.errors import ConflictError, NotFoundError, UnreachableError
from refold.core.redaction import redacted
from refold.engine.runtime.gauges import Vitals
from refold.engine.runtime.outages import OUTAGES

LOOK_S, WAIT_S = 0.5, 5.0
"""Pauses: without new events, and without a collector or a database."""

_log = structlog.get_logger()


def telemetry(
    *,
    app: Annotated[str, "APP", "App whose redaction applies: MODULE:APP or path/file.py[:APP]."] = "",
    from_start: Annotated[bool, "On the first start, export all runs of the views."] = False,
    member: Member = "",
    data: DevOption = "",
) -> None:
    """Export traces from the views by OTLP. The collector is REFOLD_TELEMETRY__ENDPOINT."""
    process = served("telemetry", member, data)
    settings, vitals = process.where.settings, Vitals()
    content = (load_app(app).redact if app else redacted) if settings.telemetry.content else None
    style = Style(OPTED_IN in os.environ.get(OPT_IN, "").split(","), content, resource_of(process.member))
    exporter = OTLPSpanExporter(endpoint=settings.telemetry.endpoint or None)
    with ends_within(CLOSE_S) as stop, process.shown(vitals):
        database = views(settings)
        spans = Telemetry(database, exporting(exporter), style, from_start=from_start)
        _log.info("service.started", service="telemetry", gen_ai=style.gen_ai)
        while not stop.is_set():
            try:
                count, wait_s = spans.turn(), LOOK_S
            except (UnreachableError, ConflictError, NotFoundError) as error:
                OUTAGES.failed("telemetry.waits", reason=error.message, next_s=WAIT_S)
                count, wait_s = 0, WAIT_S
            vitals.stand("" if wait_s == LOOK_S else "it waits for the views or the collector")
            if not count:
                stop.wait(wait_s)
        database.close()
