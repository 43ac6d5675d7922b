"""`python examples/incident [--model NAME] [--base-url URL]`: the incident under `refold dev`, with a real model.

The options are what $INCIDENT_MODEL and $INCIDENT_BASE_URL say to the app; all others are those of `refold dev`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes `refold dev`."""
    options = argparse.ArgumentParser(prog="python examples/incident", description=__doc__, allow_abbrev=False)
    options.add_argument("--model", default="", help="a model of pydantic-ai; without one the recorded script")
    options.add_argument("--base-url", default="", help="an OpenAI-compatible server that has the model")
    said, rest = options.parse_known_args()
    if said.base_url and not said.model:
        options.error("--base-url wants --model, the name that the server has for it")
    os.environ |= {"INCIDENT_MODEL": said.model, "INCIDENT_BASE_URL": said.base_url}
    app = str(Path(__file__).with_name("app.py"))
    os.execv(sys.executable, [sys.executable, "-m", "refold", "dev", app, *rest])


main()
