"""Addresses of Kafka and Redis from arguments, the environment, a running `refold dev`, or defaults."""

import json
import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from refold.core.approval.signature import SigningKey, Trust, trusted
from refold.core.errors import UnreachableError, UsageError
from refold.engine.runtime import keys
from refold.engine.runtime.settings import PARTITIONS, KafkaSettings, Settings, load

DATA = Path(".refold")
ROOT_KEY, ROOT_PUB = Path("keys", "root.json"), Path("keys", "root.pub")
"""In the data folder: the root key and its public half, in the format of REFOLD_TRUST."""
LEDGER_KEY = Path("executor", "ledger.key")
"""In the data folder: key of the ledger's records. Executors must not have the other keys."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Settings of a command. `dev`: from a running `refold dev`; `lost`: folder of one that does not run."""

    settings: Settings
    dev: bool
    lost: Path | None
    data: Path = DATA

    @property
    def trust(self) -> Trust:
        """Root keys pinned by REFOLD_TRUST or, with local brokers, by the data folder. **Raises** UsageError."""
        text = self.settings.trust
        if text.startswith("@"):
            text = _first_line(Path(text[1:]))
        elif not text and self.local and (pub := self.data / ROOT_PUB).is_file():
            text = _first_line(pub)
        return trusted(text, self.settings.platform)

    @property
    def local(self) -> bool:
        return on_loopback(self.settings.kafka.bootstrap)

    @property
    def closed(self) -> bool:
        """True if only trusted processes reach the brokers: on this machine, or by REFOLD_ALLOW_OPEN."""
        return self.local or self.settings.allow_open

    def check(self) -> None:
        if self.lost is not None:
            hint = "start one, or wait until it is ready; --kafka or REFOLD_KAFKA__BOOTSTRAP names another Kafka"
            raise UnreachableError(f"no `refold dev` runs on {self.lost}", hint=hint)


def addresses(*, kafka: str = "", redis: str = "", data: str = "") -> Addresses:
    running, named = running_dev(data), kafka or os.environ.get("REFOLD_KAFKA__BOOTSTRAP", "")
    parts = {name: part for name, part in _candidates(running, named, redis).items() if any(part.values())}
    settings = load(**parts)
    default = "kafka" not in parts and settings.kafka.bootstrap == KafkaSettings().bootstrap
    meant = bool(data or os.environ.get("REFOLD_DATA")) or DATA.is_dir()
    lost = data_dir(data) if default and meant else None  # another process may listen at the default address
    return Addresses(settings, bool(running) and not named, lost, data_dir(data))


def _candidates(running: dict[str, Any], named: str, redis: str) -> dict[str, dict[str, Any]]:
    """Settings by part, empty ones too; `named` is a Kafka that the command names."""
    redis = redis or os.environ.get("REFOLD_REDIS__URL", "") or running.get("redis", "")
    if named:
        return {"kafka": {"bootstrap": named}, "redis": {"url": redis}}
    count = running.get("partitions")
    counted = {"partitions": count} if count and not os.environ.get(PARTITIONS) else {}
    rooms = [room for room in ("blobs", "views") if not os.environ.get(f"REFOLD_{room.upper()}__URL")]
    stores = {room: {"url": running.get(room)} for room in rooms}
    return {"kafka": {"bootstrap": running.get("kafka"), **counted}, "redis": {"url": redis}, **stores}


def _first_line(path: Path) -> str:
    try:
        return next(iter(path.read_text().splitlines()), "")
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"cannot read the root keys in {path}", hint="`refold keys init` writes such a file") from None


def on_loopback(bootstrap: str) -> bool:
    return all(map(is_here, bootstrap.split(",")))


def is_here(server: str) -> bool:
    """True if a server, `HOST:PORT` or a URL, is on loopback. Names are not resolved."""
    kind, mark, place = server.strip().partition("://")
    try:
        host = urlsplit(f"//{place if mark else kind}").hostname or ""
        if (kind, mark) == ("unix", "://") or host == "localhost":
            return True
        address = ip_address(host)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:  # another name, or no address at all
        return False


def own_key(use: str, path: str, data: str) -> SigningKey | None:
    """Return the key in a file, or the only one for a use in the data folder. **Raises** UsageError."""
    if path:
        return keys.load(Path(path), use)
    folder = data_dir(data) / "keys"
    usable = [key for key in map(keys.load, sorted(folder.glob("*.json"))) if key.use == use]
    if len(usable) > 1:
        names = ", ".join(key.kid for key in usable)
        raise UsageError(f"there are {len(usable)} keys for {use}s in {folder} ({names})", hint="--key names its file")
    return usable[0] if usable else None


def vote_key(path: str, data: str) -> SigningKey:
    """Return the key that signs votes. **Raises** UsageError."""
    if key := own_key("vote", path, data):
        return key
    hint = "`refold keys new NAME --use vote` makes one; --key names its file"
    raise UsageError(f"there are 0 keys for votes in {data_dir(data) / 'keys'}", hint=hint)


def data_dir(data: str = "") -> Path:
    return Path(data or os.environ.get("REFOLD_DATA") or DATA)


def running_dev(data: str = "") -> dict[str, Any]:
    """Return the dev.json of a `refold dev`; empty without one."""
    try:
        content = json.loads((data_dir(data) / "dev.json").read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
