"""`refold projection`: progress, check and rebuild of tables filled from the log."""

import time
from collections.abc import Mapping
from contextlib import closing
from tempfile import TemporaryDirectory
from typing import Annotated

from refold.cli import output
from refold.cli.commands.serve.projections import app_projections
from refold.cli.platform import Shell, agree
from refold.client.reading.projection import ProjectionBuilt, ProjectionDropped, ProjectionInfo
from refold.console.projections.following import lags
from refold.console.projections.service import KeptProjection, verify
from refold.console.projections.status import stands_still, status_of
from refold.console.projections.views import views
from refold.console.sql.opening import open_views
from refold.core.errors import ConflictError, NotFoundError
from refold.engine.adapters.kafka.source import KafkaLogSource
from refold.engine.ports.log import Place
from refold.engine.ports.tables import ViewDatabase
from refold.sdk.projection import Projection

ProjectionArgument = Annotated[str, "PROJECTION", "Name of the projection; `refold` is the built-in one."]
AppOption = Annotated[str, "APP", "App that defines projections: MODULE:APP or path/file.py[:APP]."]
POLL_S = 0.3


def list_projections(
    projection: Annotated[str, "PROJECTION", "Show the positions, rate and lag of this one, or why it stopped."] = "",
    *,
    shell: Shell,
) -> None:
    """List projections, their generations and progress."""
    database, source, url = _open_views(shell)
    if projection:
        info = status_of(projection, database, url, source)
        shell.print(info, lambda: _print_status(info))
        return
    rows = [status_of(name, database, url, source).row for name in database.projections()]
    columns = "projection generation state version lag reason"
    shell.print_rows(rows, columns, "no projections: `refold serve projections`")


def verify_projection(projection: ProjectionArgument = "refold", *, app: AppOption = "", shell: Shell) -> None:
    """Compare every row with a fold of the log. The projection keeps running."""
    database, source, _ = _open_views(shell)
    code = _projection_code(projection, app)
    show = output.progress()

    def progress(done: int, whole: int) -> None:
        show(f"fold the log for {projection}", done, whole)

    with TemporaryDirectory(prefix="refold-") as folder, closing(open_views(f"sqlite:///{folder}/views.db")) as scratch:
        verified = verify(code, database, scratch, source, progress)
    verdict = "[green]equal[/]" if verified.equal else f"[red]{len(verified.differences)} rows differ[/]"
    lines = [f"{projection}, generation {verified.generation}: {verdict}"]
    lines += [f"  {row.table:<20} {'equal' if row.equal else '[red]differs[/]'}" for row in verified.tables]
    lines += [
        output.escape(f"  {row.table} {row.key}: the view has {row.view}, the log has {row.log}")
        for row in verified.differences[:20]
    ]
    shell.print(verified, "\n".join(lines), ok=verified.equal)


def rebuild_projection(projection: ProjectionArgument = "refold", *, app: AppOption = "", shell: Shell) -> None:
    """Build a projection from the start of the log, then switch to it once it has caught up."""
    database, source, _ = _open_views(shell)
    runner = KeptProjection(_projection_code(projection, app), database, source)
    generations = database.generations(projection)
    building = [database.store(projection, name) for name, state in generations.items() if state == "building"]
    read = [(store.notes(), store.positions()) for store in building]
    bounds, log = source.bounds(), source.identity()  # after the positions, which go on
    if not all(stands_still(notes, positions, log, bounds) for notes, positions in read):
        hint = f"`refold projection list {projection}` shows it"
        raise ConflictError(f"projection {projection} is being built already", hint=hint)
    number = max(generations, default=0) + 1
    database.create(projection, number, runner.tables, runner.begun())
    show, begun = output.progress(after_s=0), time.monotonic()
    own, records = False, 0
    while database.generations(projection).get(number) != "serving":
        own = own or database.lock(projection)  # otherwise `refold serve projections` does it
        if own:
            runner.turn(0.1)
            if runner.stopped:
                hint = f"generation {number} is left; mend the code and rebuild again"
                raise ConflictError(runner.stopped, hint=hint)
        else:
            time.sleep(POLL_S)
        bounds = source.bounds()
        records = sum(end for _, end in bounds.values())
        show(f"build {projection}, generation {number}", records - _lag(database, projection, number, bounds), records)
    runner.close()
    seconds = round(time.monotonic() - begun, 1)
    built = ProjectionBuilt(projection=projection, generation=number, records=records, seconds=seconds)
    shell.print(built, f"generation {number} of {projection} is in use: {records} records in {seconds} s")


def drop_projection(
    projection: ProjectionArgument, *, yes: Annotated[bool, "Skip the confirmation."] = False, shell: Shell
) -> None:
    """Remove all tables of a projection. `refold serve projections` builds them again from the log."""
    database = views(shell.platform.settings)
    numbers = list(database.generations(projection))
    if not numbers:
        raise NotFoundError(f"there is no projection {projection}", hint="`refold projection list` shows all")
    if not database.lock(projection):
        hint = "stop `refold serve projections` first"
        raise ConflictError(f"another process keeps the views of {projection} up to date", hint=hint)
    agree(f"Remove all tables of {projection}?", "nothing was removed", yes=yes)
    for number in numbers:
        database.drop(projection, number)
    row = ProjectionDropped(projection=projection, generations=numbers)
    shell.print(row, f"removed {projection}; the log still has all that it was made of")


def _open_views(shell: Shell) -> tuple[ViewDatabase, KafkaLogSource, str]:
    settings = shell.platform.settings
    database = views(settings)
    shell.platform.knock()
    return database, KafkaLogSource(settings.kafka), settings.views.url


def _projection_code(projection: str, app: str) -> Projection:
    shipped, own = app_projections(app)
    projections = {code.name: code for code in (*shipped, *own)}
    if projection not in projections:
        hint = "name its app: --app path/file.py" if not app else f"there is {', '.join(sorted(projections))}"
        raise NotFoundError(f"there is no code of projection {projection}", hint=hint)
    return projections[projection]


def _lag(database: ViewDatabase, projection: str, number: int, bounds: Mapping[Place, tuple[int, int]]) -> int:
    """Records that a new generation lacks. **Raises** ConflictError if it has stopped or was dropped."""
    try:
        store = database.store(projection, number)
        notes, positions = store.notes(), store.positions()
    except (ConflictError, NotFoundError):  # it was dropped
        notes, positions = {"stopped": "it was dropped"}, {}
    if reason := notes.get("stopped", ""):
        raise ConflictError(f"generation {number} is not built: {reason}", hint="mend the code and rebuild again")
    return sum(lags(positions, bounds).values())


def _print_status(info: ProjectionInfo) -> None:
    output.say(f"{output.escape(info.projection)} in {output.escape(info.database)}, {info.bytes / (1 << 20):.1f} MiB")
    for row in info.generations:
        behind = f"{row.lag} records behind, {row.rate:g} records/s, {row.left_s:g} s left" if row.lag else "caught up"
        output.say(f"generation {row.generation}, version {row.version}: {row.state}, {behind}")
        if row.reason:
            output.say(f"  [red]{output.escape(row.reason, 4_000)}[/]")
        rows = [position.dump() for position in row.positions]
        output.print_rows(rows, ("topic", "partition", "position", "end"), "no partitions")
