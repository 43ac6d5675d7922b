"""Call every command in this process, with `--help` and bare, and print the results as JSON.

Run in an environment that has the wheel alone, by its Python: nothing here imports from the checkout.
"""

from __future__ import annotations

import json
import sys

from typer.testing import CliRunner

from refold.cli.commands import COMMANDS
from refold.cli.main import app


def called(*words: str) -> dict[str, object]:
    """Call a command; return its exit code, its output, and an exception that no command may let through."""
    done = CliRunner().invoke(app, list(words), input="")
    through = None if isinstance(done.exception, SystemExit | None) else repr(done.exception)
    return {"code": done.exit_code, "output": done.output, "through": through}


if __name__ == "__main__":
    rows = {" ".join(words): [called(*words, "--help"), called(*words)] for words, _ in COMMANDS.walk()}
    json.dump(rows, sys.stdout)
