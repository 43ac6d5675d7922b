"""Recorded runs, read from a view, the log, an archive or a bundle."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated

from refold.cli import output
from refold.cli.platform import Shell
from refold.client.reading.history import Run
from refold.core.errors import MalformedError, NotFoundError, may_be_archived
from refold.core.ids import is_below, root_of
from refold.core.redaction import public_url
from refold.engine.adapters.blobs.store import ObjectBlobs
from refold.engine.runtime.settings import Settings, load
from refold.engine.stores import archived_blobs, blob_store
from refold.lab.evidence.gathering import bundled_runs

BundleFile = Annotated[str, "FILE", "Read the copy in this bundle, not Kafka."]
FromLog = Annotated[bool, "Read the log in place of the view."]


def recorded_run(
    run: str, archive: str, shell: Shell, *, from_log: bool, bundle: str = ""
) -> tuple[Run, Callable[[], list[Run]], str]:
    """Read a run from `bundle`, `archive`, or else the view or log, and last the configured archive. Return also a
    function that reads its descendants, and the archive read, if any."""
    if bundle:
        bundled = in_bundle(bundle, run)
        return bundled[run], lambda: [r for name, r in bundled.items() if is_below(name, run) and name != run], ""
    if archive:
        return from_archive(archive, run), list, archive
    runs, settings = shell.runs, shell.platform.settings
    try:
        if (views := views_of(settings, from_log=from_log)) and (viewed := views.viewed(settings, run, runs)):
            return viewed.run, lambda: viewed.family, ""
        return runs.get(run), lambda: runs.family(run), ""
    except NotFoundError as missing:
        url = settings.archive.url
        if url and not from_log and may_be_archived(missing):
            with suppress(NotFoundError):
                copy = from_archive(url, run)
                output.note(f"from the archive {public_url(url)}: the log does not have it any more")
                return copy, list, url
        raise


def in_bundle(bundle: str, run: str) -> dict[str, Run]:
    """Runs of a bundle by id; warns of a fork. **Raises** as `bundled_runs`."""
    runs = bundled_runs(Path(bundle), run)
    if first := runs[run].forked:
        output.warn(f"this is a fork of {run}: its events from {first} on lie in no topic")
    return runs


def known_family(run: str, shell: Shell, *, from_log: bool) -> dict[str, Run]:
    """Read a run's whole family, or only its descendants if the root is gone. **Raises** NotFoundError."""
    for name in dict.fromkeys((root_of(run), run)):
        with suppress(NotFoundError):
            top, below, _ = recorded_run(name, "", shell, from_log=from_log)
            family = {str(relative.state.run_id): relative for relative in (top, *below())}
            if run in family:
                return family
    raise NotFoundError(f"there is no run {run}", hint="`refold run list` shows all")


def from_archive(archive: str, run: str) -> Run:
    archives = _archives()
    copy: Run = archives.fold_archived(archives.archive_store(archive).get(run))
    return copy


def recorded_runs(archive: str, shell: Shell) -> Iterator[Run]:
    """All runs of an archive, or of the log without one; warns of an archive file whose rest cannot be read."""
    if not archive:
        yield from shell.all_runs()
        return
    progress, archives = output.progress(), _archives()
    files = (place := archives.archive_store(archive)).files()
    for number, file in enumerate(files):
        progress("read the archive", number, len(files))
        try:
            yield from map(archives.fold_archived, place.runs(file))
        except (MalformedError, NotFoundError) as error:
            output.warn(f"{error.message}: its further runs are left out")


def _archives() -> ModuleType:
    from refold.cli import archives  # it needs an extra

    return archives


def views_of(settings: Settings, *, from_log: bool) -> ModuleType | None:
    """Module that reads runs from the views; None with `from_log` or if no views are configured."""
    if from_log or not settings.views.url:
        return None
    # The import needs an extra and takes 0.1 s.
    from refold.console.projections import views

    return views


def store_of(archive: str, shell: Shell) -> ObjectBlobs | None:
    """Store of large values, beside an archive or of the platform; None if there is none."""
    return archived_blobs(load(), archive) if archive else blob_store(shell.platform.settings)
