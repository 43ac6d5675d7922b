"""The ledger's rules as Lua, and the names (SHA-1) under which a server knows them."""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files

NAMES = ("claim", "renew", "release", "hand_over", "complete", "close", "lapsed", "unsent", "set_aside", "fill")
SOURCES = {name: files(__package__).joinpath(f"{name}.lua").read_text() for name in NAMES}


def sha_of(source: str) -> str:
    """The name that `EVALSHA` takes."""
    return sha1(source.encode(), usedforsecurity=False).hexdigest()
