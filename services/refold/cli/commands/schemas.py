"""`refold schemas`: the Avro schemas in `schemas/`, exported from the Python classes."""

from __future__ import annotations

from refold.cli import output
from refold.cli.errors import FAILED, fail
from refold.cli.lazy import Commands
from refold.cli.platform import Teller
from refold.schemas import export

schemas_group = Commands("Export the Avro schemas, and check that they fit.")


@schemas_group.command("export")
def append_changes(*, teller: Teller) -> None:
    """Append what changed in Python as new versions; what was exported never changes."""
    added = export.export_schemas()
    lines = [f"exported {line.subject} version {line.version} under id {line.id}" for line in added]
    teller.tell(added, "\n".join(lines) or "[green]nothing changed[/]")


@schemas_group.command("check")
def compare_schemas(*, teller: Teller) -> None:
    """Fail when Python and the exported schemas differ, or a change would make old records unreadable."""
    problems = export.check_schemas()
    lines = [f"[red]{output.escape(problem)}[/]" for problem in problems]
    teller.tell(
        {"ok": not problems, "problems": problems}, "\n".join(lines) or "[green]the schemas are what Python says[/]"
    )
    if problems:
        fail(FAILED)
