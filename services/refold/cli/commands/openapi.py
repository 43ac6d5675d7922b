"""`refold schemas openapi`, apart from `schemas` since it needs the extra `gateway`."""

from __future__ import annotations

import json
import sys

from refold.cli.platform import Printer
from refold.console.gateway.app import routed


def print_openapi(*, printer: Printer) -> None:
    """Print the OpenAPI document of the gateway: `schemas/openapi.json`."""
    document = routed().openapi()
    printer.print(document, lambda: sys.stdout.write(json.dumps(document, indent=1) + "\n"))
