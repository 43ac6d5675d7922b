"""`refold schemas openapi`: the document of the gateway, in a module of its own, since it needs the extra `gateway`."""

from __future__ import annotations

import json
import sys

from refold.cli.platform import Teller
from refold.gateway.app import routed


def print_openapi(*, teller: Teller) -> None:
    """Print the OpenAPI document of the gateway: `schemas/openapi.json`."""
    document = routed().openapi()
    teller.tell(document, lambda: sys.stdout.write(json.dumps(document, indent=1) + "\n"))
