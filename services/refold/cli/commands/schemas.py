"""`refold schemas`: the interfaces of the gateway and of the topics as documents."""

import json
import sys
from importlib import import_module
from typing import Annotated, Any

from refold.cli.platform import Printer
from refold.core.errors import UsageError
from refold.dev.schemas.asyncapi import asyncapi
from refold.engine.adapters.kafka.topics import declared


def print_document(
    document: Annotated[str, "DOCUMENT", "openapi: of the gateway. asyncapi: of the topics."], *, printer: Printer
) -> None:
    """Print the OpenAPI or the AsyncAPI document. `schemas/` has both."""
    content = _document(document)
    printer.print(content, lambda: sys.stdout.write(json.dumps(content, indent=1) + "\n"))


def _document(name: str) -> Any:
    """OpenAPI document of the gateway, or AsyncAPI document of the topics. **Raises** UsageError for another name."""
    if name == "openapi":
        # The import needs the extra `gateway`.
        return import_module("refold.console.gateway.app").routed().openapi()
    if name == "asyncapi":
        return asyncapi(declared()["topics"])
    raise UsageError(f"there is no document {name}", hint="refold schemas openapi | asyncapi")
