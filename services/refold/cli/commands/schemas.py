"""`refold schemas`: the Avro schemas in `schemas/`, exported from the Python classes."""

from __future__ import annotations

from refold.cli import output
from refold.cli.errors import FAILED, fail
from refold.cli.lazy import Commands
from refold.cli.platform import JsonOption
from refold.schemas import export

schemas_group = Commands("Export the Avro schemas, and check that they fit.")


@schemas_group.command("export")
def append_changes(json_: JsonOption = False) -> None:
    """Append what changed in Python as new versions; what was exported never changes."""
    added = export.export_schemas()
    if json_:
        output.emit(added)
    elif not added:
        output.say("[green]nothing changed[/]")
    else:
        for line in added:
            output.say(f"exported {line.subject} version {line.version} under id {line.id}")


@schemas_group.command("check")
def compare_schemas(json_: JsonOption = False) -> None:
    """Fail when Python and the exported schemas differ, or a change would make old records unreadable."""
    problems = export.check_schemas()
    if json_:
        output.emit({"ok": not problems, "problems": problems})
    elif not problems:
        output.say("[green]the schemas are what Python says[/]")
    for problem in [] if json_ else problems:
        output.say(f"[red]{output.escape(problem)}[/]")
    if problems:
        fail(FAILED)
