"""`refold run erase`: the end of one run, without waiting for its retention."""

from __future__ import annotations

from typing import Annotated

import typer

from refold.adapters.kafka.writer import KafkaWriter
from refold.archive.service import Archivist, Swept
from refold.archive.settings import ArchivistSettings
from refold.cli import output
from refold.cli.archives import ArchiveOption, shelf
from refold.cli.errors import FAILED, fail
from refold.cli.platform import Shell
from refold.client.stores import vault
from refold.core.errors import UsageError


def erase_run(
    run: Annotated[str, "The run's id."],
    *,
    archive: ArchiveOption = "",
    no_archive: Annotated[bool, "Keep no copy of it."] = False,
    dry_run: Annotated[bool, "Say whether it could be erased; write nothing."] = False,
    yes: Annotated[bool, "Do not ask."] = False,
    shell: Shell,
) -> None:
    """Erase a finished run from every topic at once. It is archived first, unless you say otherwise."""
    platform = shell.platform
    if archive and no_archive:
        raise UsageError("a copy is wanted and not wanted", hint="--archive URL, or --no-archive")
    url = "" if no_archive else archive or platform.settings.archive.url
    if not (url or no_archive):
        hint = "--archive URL (or REFOLD_ARCHIVE__URL), or --no-archive"
        raise UsageError("say whether a copy of the run is to be kept", hint=hint)
    copy = shelf(url) if url else None
    reader = platform.runs.reader
    writer = KafkaWriter(platform.settings.kafka, "archivist")
    values = vault(platform.settings, url)
    archivist = Archivist(reader, writer, copy, ArchivistSettings(), vault=values, progress=output.progress())
    swept = archivist.erase(run, dry_run=True)
    if not dry_run:
        kept = f"a copy goes to {copy.url}" if copy else "no copy is kept"
        if not yes and not typer.confirm(f"Erase {run} from every topic? It cannot be undone; {kept}."):
            output.say("nothing was erased")
            fail(FAILED)
        swept = archivist.erase(run)
    shell.tell(swept, output.escape(_words(run, swept, dry_run=dry_run)))


def _words(run: str, swept: Swept, *, dry_run: bool) -> str:
    if dry_run:
        return f"{run} could be erased" if swept.due else f"{run} is being erased already"
    if run in swept.gone:
        return f"{run} is gone: nothing of it lies in any topic any more"
    file = f", archived in {swept.archived[run]}" if run in swept.archived else ""
    return (
        f"{run} is erased{file}: {output.counted(swept.tombstones, 'tombstone')}; its bytes go when topics are cleaned"
    )
