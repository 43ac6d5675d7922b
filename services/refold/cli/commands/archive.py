"""`refold archive` and `refold run erase`: archived runs, and erasure."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from refold.cli import options, output
from refold.cli.apps import load_app
from refold.cli.archives import archive_store, archivist_settings, fold_archived
from refold.cli.platform import Listing, Printer, Shell, agree, since_ms
from refold.client.reading.run import events_of, info_of
from refold.core.errors import ConflictError, MalformedError, UsageError
from refold.engine.adapters.kafka.writer import KafkaWriter
from refold.engine.archive.container import flaws
from refold.engine.archive.service import Archivist, Swept
from refold.engine.archive.settings import ArchivistSettings
from refold.engine.archive.store import ArchiveStore, IndexedRun
from refold.engine.stores import archived_values


@dataclass(frozen=True)
class Archive(Printer):
    archive: options.ArchiveOption = ""


@dataclass(frozen=True)
class ArchiveFilter(Shell):
    """Filter of archived runs, or the options of a passing archivist."""

    agent: Annotated[str, "Only runs of this agent."] = ""
    status: Annotated[str, "Only runs with this final status."] = ""
    since: Annotated[str, "30d|TIME", "Only runs that ended since TIME, or in the last 30d."] = ""
    limit: Annotated[options.Positive, "Show only the newest N."] = Listing.limit
    archive: options.ArchiveOption = ""
    pending: Annotated[bool, "List the runs that the archivist will erase or keep, and why; needs --app."] = False
    app_: Annotated[str, "MODULE:APP", "With --pending: the app, whose agents have retentions."] = ""
    no_archive: Annotated[bool, "With --pending: assume an archivist that keeps no copies."] = False

    def lines(self) -> list[IndexedRun]:
        after_ms, unread = since_ms(self.since), list[MalformedError]()
        lines = [
            line
            for line in archive_store(self.archive).lines(unread)
            if self.agent in ("", line.agent) and self.status in ("", line.status) and line.ended_ms >= after_ms
        ]
        for error in unread:
            output.warn(f"{error.message}: its runs are not listed")
        return sorted(lines, key=lambda line: line.ended_ms)[-self.limit :]

    def swept(self) -> Swept:
        """Dry run of the archivist's next pass: runs that it would erase or leave. **Raises** UsageError."""
        if not self.app_:
            raise UsageError("--pending needs the app, whose agents have retentions", hint="add --app APP")
        self.refuse("agent status since limit", "does not go with --pending, which lists every run that is due")
        settings = self.platform.settings
        url = "" if self.no_archive else archive_store(self.archive).url
        return Archivist(
            self.runs.reader,
            KafkaWriter(settings.kafka, "archivist"),
            ArchiveStore(url) if url else None,
            archivist_settings(load_app(self.app_), settings),
            archived_values=archived_values(settings, url),
            progress=output.progress(),
        ).sweep(dry_run=True)


def list_archived(*, which: ArchiveFilter) -> None:
    """List archived runs, by the time they ended."""
    if not which.pending:
        newest = which.lines()
        cells = [output.plain(line) | {"ended": output.moment(line.ended_ms)} for line in newest]
        columns = "run_id agent status ended records bytes file"
        which.print_rows(newest, columns, "the archive has no such run", cells=cells)
        return
    swept = which.swept()
    rows = [{"run_id": run, "status": "left", "reason": reason} for run, reason in swept.left.items()]
    rows += [{"run_id": run, "status": "due", "reason": ""} for run in swept.due if run not in swept.left]
    which.print_rows(rows, "run_id status reason", "no run is due")


def verify_archive(run: Annotated[str, "Only this run."] = "", *, where: Archive) -> None:
    """Check archived copies from their bytes alone: each chain from its first entry to its end, every id and digest."""
    archive = archive_store(where.archive)
    count, problems = 0, list[dict[str, str]]()
    for file in [archive.find(run).file] if run else archive.files():
        file_runs, file_problems = _verify_file(archive, file, run)
        count += file_runs
        problems += file_problems
    row = {"ok": not problems, "runs": count, "problems": problems}
    where.print(row, "\n".join(_verdict_lines(count, problems)), ok=not problems)


def restore_run(
    run: Annotated[str, "The run's id."],
    *,
    to: Annotated[Path, "FOLDER", "Folder for the files; created if missing."],
    where: Archive,
) -> None:
    """Write a run to files that need no Refold to read: its summary, its events, its raw records."""
    copy = archive_store(where.archive).get(run)
    if problems := flaws(copy):
        hint = "`refold archive verify` checks the copy"
        raise ConflictError(f"the copy of run {run} is not sound: {problems[0]}", hint=hint)
    shown = fold_archived(copy)
    to.mkdir(parents=True, exist_ok=True)
    raw = [record._asdict() | {"key": record.key.decode(), "value": record.value.hex()} for record in copy.records]
    files = {
        "run.json": json.dumps(output.plain(info_of(shown)), indent=2, ensure_ascii=False) + "\n",
        "events.jsonl": _lines(map(output.plain, events_of(shown))),
        "records.jsonl": _lines(raw),
    }
    if existing := [name for name in files if (to / name).exists()]:
        raise ConflictError(f"{to} has a {existing[0]} already", hint="name a folder that is empty or new")
    for name, text in files.items():
        (to / name).write_text(text)
    row = {"run_id": run, "folder": str(to), "files": sorted(files)}
    where.print(row, f"{len(files)} files in {output.escape(str(to))}")


def _verify_file(archive: ArchiveStore, file: str, only: str) -> tuple[int, list[dict[str, str]]]:
    problems, copies = list[dict[str, str]](), dict[str, str]()
    try:
        for copy in archive.runs(file):
            if only in ("", copy.run_id):
                copies[copy.run_id] = copy.digest
                problems += [{"run_id": copy.run_id, "problem": flaw} for flaw in flaws(copy)]
        indexed = {line.run_id: line.digest for line in archive.index(file) if only in ("", line.run_id)}
    except MalformedError as error:
        return 0, [{"run_id": only, "problem": error.message}]
    if indexed != copies:
        problems.append({"run_id": only, "problem": f"{file} has other runs than its index says: delete the index"})
    return len(copies), problems


def _lines(rows: Iterable[object]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _verdict_lines(count: int, problems: list[dict[str, str]]) -> list[str]:
    places = [f"[red]{output.escape(problem['run_id'])}[/]: " if problem["run_id"] else "" for problem in problems]
    lines = [place + output.escape(problem["problem"]) for place, problem in zip(places, problems, strict=True)]
    verdict = f"[red]{output.counted(len(problems), 'problem')}[/]" if problems else "[green]everything agrees[/]"
    return [*lines, f"{output.counted(count, 'run')} read: {verdict}"]


def erase_run(
    run: Annotated[str, "The run's id."],
    *,
    archive: options.ArchiveOption = "",
    no_archive: Annotated[bool, "Erase it without a copy."] = False,
    dry_run: Annotated[bool, "Report if the run can be erased; write nothing."] = False,
    yes: Annotated[bool, "Skip the confirmation."] = False,
    shell: Shell,
) -> None:
    """Erase a finished run from every topic at once. It is archived first, unless you pass --no-archive."""
    platform = shell.platform
    if archive and no_archive:
        raise UsageError("a copy is wanted and not wanted", hint="add --archive URL, or --no-archive")
    url = "" if no_archive else archive or platform.settings.archive.url
    if not (url or no_archive):
        hint = "add --archive URL, set REFOLD_ARCHIVE__URL, or add --no-archive"
        raise UsageError("say whether a copy of the run is to be kept", hint=hint)
    copy = archive_store(url) if url else None
    reader = platform.runs.reader
    writer = KafkaWriter(platform.settings.kafka, "archivist")
    patient, values = ArchivistSettings(give_up_s=20), archived_values(platform.settings, url)
    archivist = Archivist(reader, writer, copy, patient, archived_values=values, progress=output.progress())
    # A refusal comes before the question.
    swept = archivist.erase(run, dry_run=True)
    if not dry_run:
        copy_text = f"a copy goes to {copy.url}" if copy else "no copy is kept"
        agree(f"Erase {run} from every topic? It cannot be undone; {copy_text}.", "nothing was erased", yes=yes)
        swept = archivist.erase(run)
    shell.print(swept, output.escape(_outcome_text(run, swept, dry_run=dry_run)))


def _outcome_text(run: str, swept: Swept, *, dry_run: bool) -> str:
    if dry_run:
        return f"{run} could be erased" if swept.due else f"{run} is being erased already"
    if run in swept.gone:
        return f"{run} is gone: nothing of it lies in any topic any more"
    file = f", archived in {swept.archived[run]}" if run in swept.archived else ""
    tombstones = output.counted(swept.tombstones, "tombstone")
    return f"{run} is erased{file}: {tombstones}; its bytes go when topics are cleaned"
