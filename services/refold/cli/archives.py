"""Archives named by an option or a setting."""

from datetime import timedelta

from refold.client.operations.runs import Runs
from refold.client.reading.history import Run
from refold.core.errors import UsageError
from refold.engine.archive.container import ArchivedRun
from refold.engine.archive.reader import ArchiveReader
from refold.engine.archive.settings import ArchivistSettings
from refold.engine.archive.store import ArchiveStore
from refold.engine.runtime.settings import Settings, load
from refold.sdk.app import App


def archive_store(url: str) -> ArchiveStore:
    """The archive at `url`, or else the configured one. **Raises** UsageError."""
    named = url or load().archive.url
    if not named:
        raise UsageError("no archive is named", hint="add --archive URL, or set REFOLD_ARCHIVE__URL")
    return ArchiveStore(named)


def fold_archived(run: ArchivedRun) -> Run:
    return Runs(ArchiveReader(run)).get(run.run_id)


def archivist_settings(app: App, options: Settings) -> ArchivistSettings:
    own = {agent.name: agent.retention for agent in app.agents.values()}
    return ArchivistSettings(
        retention_ms=options.archive.retention_ms,
        by_agent={name: period // timedelta(milliseconds=1) for name, period in own.items() if period is not None},
        pools=app.pools,
        horizon_ms=options.archive.horizon_days * 86_400_000,
    )
