"""What the tidy tests look at: the files that are tracked, as they are now."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def tracked() -> tuple[Path, ...]:
    """Every tracked file that is there, relative to the root."""
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return tuple(path for name in out.decode().split("\0") if name and (ROOT / (path := Path(name))).is_file())


def python() -> list[Path]:
    """The Python files among them."""
    return [path for path in tracked() if path.suffix == ".py"]


def text(path: Path) -> str | None:
    """The text of a tracked file; None when it is binary."""
    try:
        return (ROOT / path).read_text()
    except UnicodeDecodeError:
        return None
