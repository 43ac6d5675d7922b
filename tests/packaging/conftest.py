"""The wheel, built once, and empty environments to install it into."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")


@dataclass(frozen=True)
class Environment:
    """An environment with refold in it, and a folder outside the checkout to work in."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "env" / "bin" / "python"

    @property
    def refold(self) -> Path:
        return self.folder / "env" / "bin" / "refold"

    def run(self, *command: str | Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs a command there, with nothing of this checkout on any path."""
        return subprocess.run(
            [str(word) for word in command],
            cwd=self.folder,
            env=self.outer(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    @staticmethod
    def outer() -> dict[str, str]:
        """The environment variables without those that name this checkout or its platform."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("REFOLD_", "PYTHON", "VIRTUAL"))
        }
        return kept | ({"REFOLD_CACHE": os.environ["REFOLD_CACHE"]} if "REFOLD_CACHE" in os.environ else {})


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the wheel, as it would be published."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("refold-*.whl")
    return built


def install(folder: Path, wheel: Path, extra: str = "") -> Environment:
    """An empty environment, the wheel, and what the wheel asks for, in the versions of the lock: those are cached."""
    made = Environment(folder)
    for command in (
        [UV, "venv", "--quiet", "--python", sys.executable, folder / "env"],
        [UV, "pip", "install", "--quiet", "--python", made.python, "-c", ROOT / "requirements.lock", f"{wheel}{extra}"],
    ):
        done = made.run(*command, timeout=150)
        assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """Give an environment after `pip install refold`."""
    return install(tmp_path_factory.mktemp("plain"), wheel)


@pytest.fixture(scope="session")
def developing(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """Give an environment after `pip install 'refold[dev]'`."""
    return install(tmp_path_factory.mktemp("developing"), wheel, "[dev]")
