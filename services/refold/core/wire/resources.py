"""Where Refold's data files lie: the exported schemas, the topic settings, the broker's jar list.

The one finder of these folders, and in `core` the one place that opens a file: the schemas are part of the code, but
people and other languages read them as files. An installed wheel carries them inside the package; an editable checkout
has them at the top of the repository.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from refold.core.errors import NotFoundError

_PACKAGE = Path(__file__).resolve().parents[2]


def resource(folder: Literal["schemas", "infra"], name: str = "") -> Path:
    """The path of a data file, or of the whole folder when no name is given.

    **Raises** NotFoundError when the file is missing, which means a broken installation.
    """
    for base in (_PACKAGE / f"_{folder}", _PACKAGE.parents[1] / folder):
        path = base / name
        if path.exists():
            return path
    missing = f"{folder}/{name} is not part of this installation"
    raise NotFoundError(missing, hint="install refold again", folder=folder, name=name)


def content(folder: Literal["schemas", "infra"], name: str) -> str:
    return resource(folder, name).read_text()
