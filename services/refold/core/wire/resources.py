"""Locations of Refold's data files (exported schemas, topic settings, the broker's jar list, documentation): inside the
package in a wheel, at the top of the repository in an editable checkout."""

from pathlib import Path
from typing import Literal

from refold.core.errors import NotFoundError

_PACKAGE = Path(__file__).resolve().parents[2]


def resource(folder: Literal["schemas", "infra", "docs", "skills"], name: str = "") -> Path:
    """Path of a data file, or of the folder without `name`. **Raises** NotFoundError if the installation is broken."""
    for base in (_PACKAGE / f"_{folder}", _PACKAGE.parents[1] / folder):
        path = base / name
        if path.exists():
            return path
    missing = f"{folder}/{name} is not part of this installation"
    raise NotFoundError(missing, hint="install refold again", folder=folder, name=name)
