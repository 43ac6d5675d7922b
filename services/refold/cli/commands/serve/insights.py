"""`refold serve insights`."""

import signal
import sys
from typing import Annotated

import structlog

from refold.cli.commands.serve.process import DevOption, check_homes, served
from refold.console.insights.figures import Insights
from refold.console.insights.service import Counting, figures_store, work
from refold.console.projections.following import LoggedRuns
from refold.console.projections.service import priced
from refold.console.sql.opening import open_views
from refold.core.topics import RUN_INSIGHT, RUN_LOG
from refold.engine.adapters.kafka.source import KafkaLogSource
from refold.engine.adapters.kafka.writer import TableTopic
from refold.engine.runtime.clock import clock_ms

_log = structlog.get_logger()


def insights(
    *,
    state: Annotated[str, "URL", "Database of figures and positions, not shared."] = "sqlite:///insights.db",
    data: DevOption = "",
) -> None:
    """Count events and raise alerts, with Faust. Figures go to the topic `run-insight`."""
    # Faust handles signals from the start of its loop on, which is seconds away. A batch is whole or not at all.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    kafka = served("insights", "", data).where.settings.kafka
    check_homes(kafka, RUN_LOG)
    source, (price, table) = KafkaLogSource(kafka), priced()
    price({}, 0)  # the table takes a second, which a batch has not
    log, figures = source.identity(), Insights(price, table)
    send = TableTopic(kafka, RUN_INSIGHT, source.partitions).write
    read = lambda partition, at: source.reader.since(RUN_LOG, {partition: at}).to_the_end()  # noqa: E731
    counting = Counting(figures, figures_store(open_views(state), figures, log), LoggedRuns(source.reader), read, send)
    places = [(RUN_LOG, number) for number in range(source.partitions)]
    counting.begin(clock_ms(), log, {place: (0, source.end(place)) for place in places})
    _log.info("service.started", service="insights", position=counting.position)
    work(kafka, counting)
