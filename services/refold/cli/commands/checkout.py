"""Finds what is in a checkout and not in an installed package: examples and benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from refold.core.errors import UsageError

ROOT = Path(__file__).resolve().parents[4]


def need(path: str) -> Path:
    """A file or folder of the checkout. **Raises** UsageError in an installed package."""
    found = ROOT / path
    if not found.exists():
        raise UsageError(f"{path} is not part of an installed package", hint="run this in a checkout of the repository")
    return found


def run_module(module: str, args: list[str]) -> int:
    """Runs a module of the checkout in a process of its own; returns its exit code."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", module, *args]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=False).returncode
