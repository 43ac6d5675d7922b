"""`refold schemas`: Avro schemas exported from the Python classes, and AsyncAPI."""

from __future__ import annotations

import json
import sys

from refold.cli import output
from refold.cli.platform import Printer
from refold.dev.schemas import export
from refold.dev.schemas.asyncapi import asyncapi
from refold.engine.adapters.kafka.topics import declared


def append_changes(*, printer: Printer) -> None:
    """Append changed classes as new schema versions. Exported versions never change."""
    added = export.export_schemas()
    lines = [f"exported {line.subject} version {line.version} under id {line.id}" for line in added]
    printer.print(added, "\n".join(lines) or "[green]nothing changed[/]")


def compare_schemas(*, printer: Printer) -> None:
    """Compare the classes with the exported schemas. Exit code 1 if they differ, or old records would be unreadable."""
    problems = export.check_schemas()
    lines = [f"[red]{output.escape(problem)}[/]" for problem in problems]
    text = "\n".join(lines) or "[green]the schemas are what Python says[/]"
    printer.print({"ok": not problems, "problems": problems}, text, ok=not problems)


def print_asyncapi(*, printer: Printer) -> None:
    """Print the AsyncAPI document of the topics: `schemas/asyncapi.json`."""
    document = asyncapi(declared()["topics"])
    printer.print(document, lambda: sys.stdout.write(json.dumps(document, indent=1) + "\n"))
