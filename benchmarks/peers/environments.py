"""An environment for each peer, in the cache folder of `refold dev`, made on first use: a Python with its packages, and
its server where it has one."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from refold.core.errors import RefoldError
from refold.dev.files import cache_dir, exclusive

PACKAGES = {
    "restate": ("restate-sdk==1.3.0", "hypercorn==0.18.0", "aiohttp==3.14.5"),
    "dbos": ("dbos==3.4.0", "psycopg[binary]==3.3.9"),
    "langgraph": ("langgraph==1.2.24", "langgraph-checkpoint-postgres==3.2.0", "psycopg[binary,pool]==3.3.9"),
    "temporal": ("temporalio==1.35.0",),
}
RESTATE = "@restatedev/restate-server@1.7.12"
"""The package of npm with its server."""
TEMPORAL = "go install github.com/temporalio/cli/cmd/temporal@v1.5.1"
"""It takes ten minutes and three gigabytes, so it is not done here."""


@dataclass(frozen=True)
class Environment:
    """The Python of a peer, and the program of its server, if it has one."""

    python: str
    server: str = ""


def environment(peer: str) -> Environment:
    """Return a peer's environment, made if there is none. **Raises** RefoldError with the reason if that fails."""
    versions = json.dumps([PACKAGES[peer], RESTATE, sys.version])
    folder = cache_dir() / "peers" / f"{peer}-{hashlib.sha256(versions.encode()).hexdigest()[:8]}"
    with exclusive(folder.with_suffix(".lock")):
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            uv = str(Path(sys.executable).with_name("uv"))
            _run(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
            _run(uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *PACKAGES[peer])
            (folder / "made").touch()
        return Environment(str(folder / "bin" / "python"), _server(peer, folder))


def _server(peer: str, folder: Path) -> str:
    """Return the program of a peer's server; install it if it is not there."""
    if peer == "restate":
        pattern = "node_modules/@restatedev/restate-server-*/bin/restate-server"
        if not any(folder.glob(pattern)):
            _run("npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(folder), RESTATE)
        return _answering(next(map(str, folder.glob(pattern)), pattern))
    if peer == "temporal":  # its development server cannot be had from a registry of packages
        if (program := shutil.which("temporal")) is None:
            raise RefoldError(f"no program `temporal` on the PATH; one way to it is `{TEMPORAL}`")
        return _answering(program)
    return ""


def _answering(program: str) -> str:
    _run(program, "--version")
    return program


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1_800)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RefoldError(f"{command[0]}: {error}") from error
    if done.returncode:
        lines: Sequence[str] = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise RefoldError(f"{Path(command[0]).name} {' '.join(command[1:3])}: {lines[-1][:200]}")
