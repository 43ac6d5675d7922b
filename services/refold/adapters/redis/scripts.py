"""Rules of the ledger in Lua, by name."""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files

NAMES = ("claim", "renew", "release", "hand_over", "complete", "close", "lapsed", "unsent", "set_aside", "fill")
SOURCES = {name: files(__package__).joinpath(f"{name}.lua").read_text() for name in NAMES}


def sha_of(source: str) -> str:
    """Name of a script for `EVALSHA`."""
    return sha1(source.encode(), usedforsecurity=False).hexdigest()
