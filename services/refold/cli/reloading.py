"""Reload of an app's code under `refold dev`."""

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
from refold.dev.files import write_atomic

CODE_JSON = "code.json"
"""Lists the source files of the running code, in the data folder."""
# A process of its own: code that does not load, or hangs for a minute, leaves the running code alone.
_LOAD = "import signal, sys; signal.alarm(60); from refold.cli.reloading import print_code; print_code(sys.argv[1])"


def code_of(app: str) -> list[str]:
    """Load an app; return the sorted files that it imports from its own folder."""
    load_app(app)
    place = app.rpartition(":")[0] if ":" in app else app
    own = Path(place if place.endswith(".py") else sys.modules[place].__file__ or "").resolve()
    files = {own, *(Path(getattr(module, "__file__", None) or "/").resolve() for module in [*sys.modules.values()])}
    return sorted(str(path) for path in files if path.is_relative_to(own.parent) and "site-packages" not in path.parts)


def print_code(app: str) -> None:
    """Print the files and pools of an app as JSON, or only the error."""
    try:
        print(json.dumps([code_of(app), load_app(app).pools]))  # noqa: T201 - for the process that watches
    except RefoldError as error:
        print(json.dumps([error.message]))  # noqa: T201


def version_of(files: Sequence[str]) -> str:
    return blake2b(b"".join(path.read_bytes() for path in map(Path, files) if path.exists()), digest_size=4).hexdigest()


def running_code(data: Path) -> str:
    """Code version of a service that starts now; empty without a `refold dev`."""
    with suppress(OSError, ValueError):
        return version_of(json.loads((data / CODE_JSON).read_text()))
    return ""


class CodeWatch:
    """Watches an app's files, and calls `restart` after a change that loads."""

    def __init__(self, app: str, data: Path, restart: Callable[[], None]) -> None:
        self._app, self._data, self._restart = app, data, restart
        self._take(code_of(app))
        self._current = self._loaded = self._times()

    def _take(self, files: list[str]) -> None:
        self._files, self.version = files, version_of(files)
        write_atomic(self._data / CODE_JSON, json.dumps(files))

    def _times(self) -> dict[str, int]:
        """Modification times, also of new files beside the loaded ones."""
        beside = (path for folder in {Path(file).parent for file in self._files} for path in folder.glob("*.py"))
        return {str(path): path.stat().st_mtime_ns for path in beside if path.exists()}

    def look(self) -> None:
        """Apply a change after the files were stable for one call, if the code loads."""
        before, self._current = self._current, self._times()
        if self._current != before or self._current == self._loaded:
            return
        self._loaded, old = self._current, self.version
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
