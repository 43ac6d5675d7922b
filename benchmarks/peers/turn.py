"""One turn of a peer in its own Python, on a folder, ports and a Postgres of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.engine import ROOT
from benchmarks.peers.environments import environment
from benchmarks.peers.load import STEPS_FILE

from refold.dev.ports import free_port
from refold.dev.postgres import EmbeddedPostgres


def main() -> int:
    """Run the script of a peer, whose last line is the figures."""
    wanted = json.loads(sys.argv[1])
    peer = wanted["peer"]
    made = environment(peer)
    with tempfile.TemporaryDirectory(prefix="rp-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o711)  # Postgres does not run as root, and has to pass
        wanted |= {"ports": [free_port() for _ in range(4)], "server": made.server}
        if peer in ("dbos", "langgraph"):
            database = stack.enter_context(EmbeddedPostgres(folder / "pg"))
            wanted |= {"postgres": database.url, "postgres_pid": database.pid}
        environ = {**os.environ, "PYTHONPATH": str(ROOT), STEPS_FILE: str(folder / "steps")}
        command = [made.python, "-m", f"benchmarks.peers.on_{peer}", json.dumps(wanted)]
        return subprocess.run(command, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
