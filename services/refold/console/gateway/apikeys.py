"""API keys, stored as digests in a file."""

import fcntl
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from refold.core.errors import NotFoundError, RefoldError, UsageError
from refold.core.wire.canonical import hex_digest
from refold.engine.runtime import keys
from refold.engine.runtime.clock import clock_ms

_log = structlog.get_logger()

KEY_PREFIX = "rfk_"
MOST_FILE = 4 << 20
"""Bytes of the file: some 10,000 keys."""
_KEY = re.compile(r"rfk_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


class ApiKey(BaseModel):
    """A stored key. **Units**: milliseconds since 1970; `expires_ms` 0: never."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefix: str
    digest: str
    actor: str
    roles: tuple[str, ...]
    expires_ms: int
    made_ms: int


_HINT = "`refold keys new --api` writes one"
_FILE = TypeAdapter(list[ApiKey])
_State = tuple[int, int, int]


def new_api_key(actor: str, roles: tuple[str, ...], expires_ms: int) -> tuple[str, ApiKey]:
    """Return a new key, which is shown once, and its entry for the file."""
    prefix = secrets.token_hex(6)
    text = f"{KEY_PREFIX}{prefix}_{secrets.token_urlsafe(32)}"
    made_ms = clock_ms()
    return text, ApiKey(  # 256 random bits need no slow digest
        prefix=prefix, digest=hex_digest(text), actor=actor, roles=roles, expires_ms=expires_ms, made_ms=made_ms
    )


class ApiKeys:
    """File of API keys, read again when it changes; without a path or with an unreadable file there are none."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._state: _State | None = None
        self._keys: Mapping[str, ApiKey] = {}

    def load(self) -> Mapping[str, ApiKey]:
        """Return the keys by prefix, read now. **Raises** NotFoundError, UsageError for an invalid file."""
        if self._path is None:
            return {}
        try:
            return {key.prefix: key for key in _FILE.validate_json(keys.read_private(self._path, MOST_FILE))}
        except NotFoundError:
            raise NotFoundError(f"there is no file {self._path}", hint=_HINT) from None
        except ValidationError:
            raise UsageError(f"{self._path} is no file of API keys", hint=_HINT) from None

    def named(self, prefix: str) -> ApiKey | None:
        self._refresh()
        key = self._keys.get(prefix)
        return key if key is not None and not 0 < key.expires_ms <= clock_ms() else None

    def found(self, text: str) -> ApiKey | None:
        """Return the stored key of a client's `rfk_...`; None if it is unknown or expired."""
        parts = _KEY.fullmatch(text)
        key = self.named(parts[1]) if parts else None
        return key if key is not None and hmac.compare_digest(key.digest, hex_digest(text)) else None

    def change(self, change: Callable[[dict[str, ApiKey]], None]) -> None:
        """Change the file in one step, under a lock. **Raises** as `load`; UsageError without a path."""
        if self._path is None:
            raise UsageError("there is no file of API keys", hint="add --file, or set REFOLD_GATEWAY__API_KEYS")
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A lock of the file itself would stay with the old one, which is replaced.
        with closing(open(f"{self._path}.lock", "w")) as lock:  # noqa: PTH123 - closing unlocks it
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                stored = dict(self.load())
            except NotFoundError:
                stored = {}
            change(stored)
            fresh = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}")
            text = json.dumps([key.model_dump() for key in stored.values()], indent=1, ensure_ascii=False)
            keys.write_private(text + "\n", fresh)
            fresh.replace(self._path)

    def _refresh(self) -> None:
        if self._path is None or (state := _file_version(self._path)) == self._state:
            return
        # Before the read: a change during it is seen the next time.
        self._state = state
        try:
            self._keys = self.load()
        except RefoldError as error:
            self._keys = {}
            _log.error("gateway.keys_unread", reason=error.message)


def _file_version(path: Path) -> _State:
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_mtime_ns, status.st_ino, status.st_size
