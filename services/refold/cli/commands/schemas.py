"""`refold schemas`: the Avro schemas in `schemas/`, exported from the Python classes."""

from __future__ import annotations

import typer

from refold.cli import output
from refold.cli.errors import FAILED, fail
from refold.cli.platform import JsonOption

app = typer.Typer(help="Export the Avro schemas, and check that they fit.", no_args_is_help=True)


@app.command()
def export(json_: JsonOption = False) -> None:
    """Append what changed in Python as new versions; what was exported never changes."""
    from refold.schemas.export import export_schemas as run

    added = run()
    if json_:
        output.emit(added)
    elif not added:
        output.say("[green]nothing changed[/]")
    else:
        for line in added:
            output.say(f"exported {line.subject} version {line.version} under id {line.id}")


@app.command()
def check(json_: JsonOption = False) -> None:
    """Fail when Python and the exported schemas differ, or a change would make old records unreadable."""
    from refold.schemas.export import check_schemas as run

    problems = run()
    if json_:
        output.emit({"ok": not problems, "problems": problems})
    elif not problems:
        output.say("[green]the schemas are what Python says[/]")
    for problem in [] if json_ else problems:
        output.say(f"[red]{output.escape(problem)}[/]")
    if problems:
        fail(FAILED)
