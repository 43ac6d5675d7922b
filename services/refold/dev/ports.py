"""Ports of embedded servers: chosen once per data folder, so that addresses survive restarts."""

import json
import random
import socket
import time
from pathlib import Path

from refold.core.errors import ConflictError, RefoldError
from refold.dev.files import write_atomic

HOST = "127.0.0.1"

# Below the range (32768 and up on Linux) of outgoing connections: between a crash and the restart a client could get
# the server's own port, which would then never come back.
_FIRST, _LAST = 17_000, 31_999
_TRIES = 200
# The servers of a `refold dev` that was killed end a moment later than it does.
_RELEASE_S = 3.0


def remembered_ports(path: Path, *names: str) -> dict[str, int]:
    """Ports by name, from the file, or free ones that are then written to it."""
    remembered: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    ports = {name: remembered.get(name) or free_port() for name in names}
    if ports != remembered:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(ports) + "\n")
    return ports


def check_free(path: Path) -> None:
    """Wait until the ports of a stopped server are free. **Raises** ConflictError if another program has one."""
    for name, port in (json.loads(path.read_text()) if path.exists() else {}).items():
        deadline = time.monotonic() + _RELEASE_S
        while not _is_free(port):
            if time.monotonic() > deadline:
                # Not replaced by another port: clients may use this one.
                hint = f"stop what listens there, or delete {path}: then another one is chosen"
                raise ConflictError(f"port {port} of {HOST}, the {name} of {path.parent}, is taken", hint=hint)
            time.sleep(0.05)


def free_port() -> int:
    choose = random.SystemRandom()
    for _ in range(_TRIES):
        port = choose.randint(_FIRST, _LAST)
        if _is_free(port):
            return port
    raise RefoldError(f"no free port between {_FIRST} and {_LAST} on {HOST}", hint="stop what listens there")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
