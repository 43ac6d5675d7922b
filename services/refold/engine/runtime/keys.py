"""Private keys on disk: one JSON Web Key per file, readable by its owner alone."""

import json
import os
import secrets
import stat
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any

from refold.core.approval.signature import PublicKey, SigningKey
from refold.core.errors import MalformedError, NotFoundError, UsageError
from refold.core.wire import canonical, seal

_MAX_BYTES = 4_096
_FIELDS = {"kty", "crv", "kid", "use", "x", "d"}


def new(use: str, name: str) -> SigningKey:
    """Create a key, with a random id. **Raises** UsageError."""
    key = SigningKey(f"{name}-{secrets.token_hex(4)}", use, secrets.token_bytes(32))
    PublicKey.parse(key.public().content())
    return key


def save(key: SigningKey, path: Path) -> None:
    """Write a private key file. **Raises** UsageError if it exists (no key is overwritten) or cannot be written."""
    content = {"kty": "OKP", "crv": "Ed25519", "kid": key.kid, "use": key.use, "x": key.public().x}
    content["d"] = urlsafe_b64encode(key.seed).rstrip(b"=").decode()
    write_private(json.dumps(content, indent=2) + "\n", path)


def write_private(text: str, path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Created with its mode, not changed to it later: in between, others could open it.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if path.exists():
            hint = "name another file; keys are never written over"
            raise UsageError(f"{path} is there already", hint=hint) from None
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="name another place") from None


def load(path: Path, use: str = "") -> SigningKey:
    """Read a key file. **Raises** NotFoundError; UsageError if others may read it or it has no key for this `use`."""
    source = read_private(path)
    try:
        key = _parse(canonical.parse(source))
    except (MalformedError, ValueError):
        raise UsageError(f"{path} is not a key file", hint="it is a JSON Web Key (OKP, Ed25519) with d") from None
    if use and key.use != use:
        hint = f"`refold keys new NAME --use {use}` makes one; --key names its file"
        raise UsageError(f"the key {key.kid} signs {key.use}s", hint=hint)
    return key


def read_private(path: Path, most: int = _MAX_BYTES) -> bytes:
    """First bytes of a file that only its owner may read, or of root's that a group may. **Raises** as `load`."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            source = file.read(most)
    except FileNotFoundError:
        raise NotFoundError(f"there is no key file {path}", hint="`refold keys new` makes one") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="name a file that you own") from None
    if status.st_uid not in (os.geteuid(), 0):  # a secret that is mounted is root's
        hint = f"make a new key, or chown it: whoever owns {path} can read and change it"
        raise UsageError(f"{path} belongs to somebody else", hint=hint)
    # Kubernetes hands a mounted secret to a process by a group of its pod (fsGroup): it has no other way to read it.
    others = 0o077 if status.st_uid == os.geteuid() else 0o037
    if stat.S_IMODE(status.st_mode) & others:
        raise UsageError(f"{path} may be read by others than its owner", hint=f"chmod 600 {path}, or make a new key")
    return source


def shared_key(named: str) -> bytes:
    """Key shared by several processes: hex digits, or a private file of them. **Raises** as `load`."""
    if not named or seal.is_key(named):
        return bytes.fromhex(named)
    text = read_private(Path(named)).decode(errors="replace").strip()
    if not seal.is_key(text):
        raise UsageError(f"{named} holds no such key", hint="it is one line: `openssl rand -hex 32`")
    return bytes.fromhex(text)


def _parse(content: Any) -> SigningKey:
    """Parse a private key. **Raises** ValueError, also if its halves do not match."""
    if not isinstance(content, dict) or content.keys() != _FIELDS or not all(type(v) is str for v in content.values()):
        raise ValueError("other fields")
    key = SigningKey(content["kid"], content["use"], urlsafe_b64decode(content["d"] + "=="))
    try:
        public = PublicKey.parse(key.public().content())
    except UsageError as error:
        raise ValueError(error.message) from None
    if (content["kty"], content["crv"], content["x"]) != ("OKP", "Ed25519", public.x):
        raise ValueError("another public key")
    return key
