"""Code of an app under `refold dev`: the version that runs, and services that start again when its files change."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from refold.cli import output
from refold.cli.apps import load_app
from refold.core.errors import RefoldError
from refold.embedded.files import write_atomic

CODE_JSON = "code.json"
"""In the data folder: the files of the code that runs."""
_LOAD = "import signal, sys; signal.alarm(60); from refold.cli.reloading import print_code; print_code(sys.argv[1])"


def code_of(app: str) -> list[str]:
    """Load an app in this process; return the files of what it imports from the folder of its file, sorted."""
    load_app(app)
    place = app.rpartition(":")[0] if ":" in app else app
    own = Path(place if place.endswith(".py") else sys.modules[place].__file__ or "").resolve()
    found = {own, *(Path(getattr(each, "__file__", None) or "/").resolve() for each in [*sys.modules.values()])}
    return sorted(str(path) for path in found if path.is_relative_to(own.parent) and "site-packages" not in path.parts)


def print_code(app: str) -> None:
    """Print the files and the pools of an app as JSON, or why it does not load."""
    try:
        print(json.dumps([code_of(app), load_app(app).pools]))  # noqa: T201 - for the process that watches
    except RefoldError as error:
        print(json.dumps([error.message]))  # noqa: T201


def version_of(files: Sequence[str]) -> str:
    """Return the digest of files as they are on the disk now, in 8 digits."""
    return blake2b(b"".join(path.read_bytes() for path in map(Path, files) if path.exists()), digest_size=4).hexdigest()


def running_code(data: Path) -> str:
    """Return the version that a service loads which starts now; nothing where no `refold dev` has noted its files."""
    with suppress(OSError, ValueError):
        return version_of(json.loads((data / CODE_JSON).read_text()))
    return ""


class CodeWatch:
    """Looks at the files of an app. `restart` is called once a change of them has loaded."""

    def __init__(self, app: str, data: Path, restart: Callable[[], None]) -> None:
        self._app, self._data, self._restart = app, data, restart
        self._take(code_of(app))
        self._seen = self._taken = self._times()

    def _take(self, files: list[str]) -> None:
        self._files, self.version = files, version_of(files)
        write_atomic(self._data / CODE_JSON, json.dumps(files))

    def _times(self) -> dict[str, int]:
        """Modification times of Python files beside the loaded ones: the next import may read a new one."""
        beside = (path for folder in {Path(file).parent for file in self._files} for path in folder.glob("*.py"))
        return {str(path): path.stat().st_mtime_ns for path in beside if path.exists()}

    def look(self) -> None:
        """Take a change that has come to rest since the last look. The old code goes on while the new does not load."""
        before, self._seen = self._seen, self._times()
        if self._seen != before or self._seen == self._taken:
            return
        self._taken, old = self._seen, self.version
        run = subprocess.run([sys.executable, "-c", _LOAD, self._app], capture_output=True, text=True, check=False)
        files, *pools = json.loads((run.stdout.splitlines() or [json.dumps([run.stderr[-500:]])])[-1])
        if not pools:
            output.warn(f"code {old} goes on: {files}")
        elif version_of(files) != old:
            self._take(files)
            if new := sorted({*pools[0]} - {*load_app(self._app).pools}):
                output.warn(f"nothing serves the new pool {new[0]}: start `refold dev` again")
            output.say(f"{output.escape(self._app)} changed: code [bold]{self.version}[/] in place of {old}")
            self._restart()
