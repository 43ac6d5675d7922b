"""`refold serve archivist`."""

from contextlib import suppress
from typing import Annotated

import structlog

from refold.cli.archives import archivist_settings
from refold.cli.commands.serve.process import CLOSE_S, DevOption, Member, ServedApp, ends_within, served
from refold.core.errors import UnreachableError, UsageError
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.writer import KafkaWriter
from refold.engine.archive.service import Archivist
from refold.engine.archive.store import ArchiveStore
from refold.engine.runtime.gauges import Vitals
from refold.engine.runtime.outages import OUTAGES
from refold.engine.stores import archived_values

_log = structlog.get_logger()


def archivist(
    *,
    app: ServedApp,
    once: Annotated[bool, "Make one pass and exit, for a cron job."] = False,
    no_archive: Annotated[bool, "Erase runs without a copy."] = False,
    member: Member = "",
    data: DevOption = "",
) -> None:
    """Archive and erase runs after their retention. The archive is REFOLD_ARCHIVE__URL."""
    process = served("archivist", member, data)
    options = process.where.settings
    url = "" if no_archive else options.archive.url
    if not (url or no_archive):
        hint = "set REFOLD_ARCHIVE__URL, or add --no-archive to erase without a copy"
        raise UsageError("say whether copies of the runs are to be kept", hint=hint)
    own = archivist_settings(process.load(app), options)
    copies, values = ArchiveStore(url) if url else None, archived_values(options, url)
    if copies is None:
        _log.warning("archivist.no_archive", retention_ms=own.retention_ms, by_agent=dict(own.by_agent))
    vitals, quiet = Vitals(), dict[int, int]()
    with ends_within(CLOSE_S) as stop, process.shown(vitals), suppress(_Stopped):

        def progress(*_: object) -> None:
            if stop.is_set():
                raise _Stopped

        while not stop.is_set():
            lacks = ""
            try:
                # A new writer for each pass: after a gap in its records, a client is unusable.
                writer = KafkaWriter(options.kafka, process.member)
                reader = KafkaLogReader(options.kafka)
                _sweep(Archivist(reader, writer, copies, own, archived_values=values, progress=progress), quiet)
            except UnreachableError as error:
                if once:
                    raise
                lacks = error.message
                OUTAGES.failed("archivist.interrupted", reason=str(error))
            if once:
                return
            vitals.stand(lacks)
            stop.wait(options.archive.every_ms / 1000)


class _Stopped(BaseException):
    """Ends a pass between two of its steps; the next pass does the rest."""


def _sweep(passing: Archivist, quiet: dict[int, int]) -> None:
    swept = passing.sweep(quiet)
    counts = {"archived": len(swept.archived), "tombstones": swept.tombstones, "erasing": swept.erasing}
    _log.info("archivist.swept", due=len(swept.due), gone=len(swept.gone), left=len(swept.left), **counts)
    for run, reason in swept.left.items():
        _log.warning("archivist.left", run_id=run, reason=reason)
