"""The direction of imports, style and types, as `make lint` checks them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.repository import ROOT, python

BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["lint-imports", "--no-cache"],
        ["ruff", "check", "--no-cache", "--quiet"],
        ["ruff", "format", "--check", "--no-cache", "--quiet"],
        ["mypy", "--no-error-summary"],
    ],
    ids=" ".join,
)
def test_the_linters_find_nothing(command: list[str]) -> None:
    files = [str(path) for path in python()] if command[0] == "ruff" else []

    done = subprocess.run(
        [BIN / command[0], *command[1:], *files], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
