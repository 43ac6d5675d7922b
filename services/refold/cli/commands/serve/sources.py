"""`refold serve sources`."""

from dataclasses import replace

import structlog

from refold.cli.apps import load_app
from refold.cli.commands.serve.process import CLOSE_S, DevOption, Member, ServedApp, ends_within, served
from refold.core.errors import UnreachableError, UsageError
from refold.engine.adapters.kafka.foreign import ForeignTopic
from refold.engine.runtime.gauges import Vitals
from refold.engine.runtime.outages import OUTAGES

LOOK_S = 0.1
"""Wait for a record, and pause if all sources have a reason to wait."""

_log = structlog.get_logger()


def sources(*, app: ServedApp, member: Member = "", data: DevOption = "") -> None:
    """Map records of other topics to runs and signals, as sources of the app declare."""
    process, loaded, vitals = served("sources", member, data), load_app(app), Vitals()
    settings = process.where.settings
    if not loaded.sources:
        raise UsageError(f"app {loaded.name} has no sources", hint='write @app.source("TOPIC", group="GROUP")')
    # With another number of partitions, runs would begin outside of their homes, and again.
    process.topics(()).check()
    process.lock_member()
    topics = [ForeignTopic(settings, source, process.member, vitals) for source in loaded.sources.values()]
    # The lag is that of topics without our prefix.
    plain = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"prefix": ""})})
    with ends_within(CLOSE_S) as stop, replace(process, where=replace(process.where, settings=plain)).shown(vitals):
        _log.info("service.started", service="sources", topics=[*loaded.sources])
        while not stop.is_set():
            lacks = [_turn(topic, LOOK_S / len(topics)) for topic in topics]
            vitals.stand(next(filter(None, lacks), ""))
            if all(lacks):
                stop.wait(LOOK_S)
        for topic in topics:
            topic.close()


def _turn(topic: ForeignTopic, wait_s: float) -> str:
    try:
        lacks = topic.turn(wait_s)
    except (UnreachableError, UsageError) as error:  # a broker that comes back calls topics unknown; a right may come
        lacks = error.message
    if lacks:
        OUTAGES.failed("source.waits", topic.source.topic, reason=lacks)
    return lacks
