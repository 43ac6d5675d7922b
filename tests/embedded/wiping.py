"""A Valkey that loses everything, as a new disk does: crash, delete the data, start again at the same address."""

from __future__ import annotations

import shutil

from refold.dev.stack import DevStack
from refold.dev.valkey import EmbeddedValkey


def wipe(server: EmbeddedValkey) -> None:
    """Wipe a server that runs by itself."""
    server.kill()
    shutil.rmtree(server.store)
    server.start()


def wipe_valkey(stack: DevStack) -> None:
    """Wipe the server of a stack that has one of its own."""
    server = EmbeddedValkey(stack.data_dir / "valkey")
    with stack.supervisor.down("valkey"):
        shutil.rmtree(server.store)
        server.prepare()
    server.wait_ready()
