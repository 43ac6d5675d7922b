"""Signed tokens and the catalog as the checker reads them: from raw bytes, sharing no code with `core`."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from refold.engine.ports.log import Record
from tests.simulator.reading.values import Datum, read_value
from tests.simulator.settings import ROOT

_ROOT_X = ROOT.public().x


@dataclass(frozen=True, slots=True)
class Law:
    """The catalog of a partition as it was below an offset. `keys` are those of any use, by id."""

    keys: Mapping[str, Datum] = field(default_factory=dict)
    policies: Mapping[str, Datum] = field(default_factory=dict)
    current: str = ""
    roles: Mapping[str, list[str]] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()

    def with_entry(self, name: str, kind: str, content: Any) -> Law:
        """The catalog after one more record."""
        if kind == "key":
            return replace(self, keys={**self.keys, content["kid"]: content})
        if kind == "policy":
            return replace(self, policies={**self.policies, name.partition("/")[2]: content})
        if kind == "roles":
            return replace(self, roles=content["roles"], revoked=frozenset(content["revoked"]))
        return replace(self, current=content) if kind == "current" else self


class Laws:
    """The catalog through a case. The simulator's operator writes every change into all partitions at one moment."""

    def __init__(self) -> None:
        self._versions: defaultdict[int, list[tuple[int, Law]]] = defaultdict(lambda: [(0, Law())])
        self._counters: Counter[tuple[int, str]] = Counter()

    def follow(self, record: Record) -> None:
        """Takes the next record of a partition of the catalog. One counts that the root key has signed as the next."""
        versions, name = self._versions[record.partition], (record.key or b"").decode(errors="replace")
        law, place = versions[-1][1], (record.partition, name)
        try:
            entry = read_value(record.value or b"")
        except (ValueError, KeyError, IndexError, EOFError):
            return
        if entry["name"] == name and entry["counter"] > self._counters[place] and _enacted(entry):
            self._counters[place] = entry["counter"]
            law = law.with_entry(name, entry["kind"], json.loads(entry["content"]))
        versions.append((record.offset + 1, law))

    def known(self, partition: int, position: int) -> Law:
        """What somebody knows who has read a partition up to a position."""
        return next(law for upto, law in reversed(self._versions[partition]) if upto <= position)

    def all(self, partition: int) -> list[Law]:
        """Every state that there was."""
        return [law for _, law in self._versions[partition]]


def _enacted(entry: Datum) -> bool:
    """Whether the root key has signed an entry as it is."""
    kid, payload = _read(entry["token"]) or ("", {})
    content = sha256(entry["content"].encode()).hexdigest()
    said = {**{name: entry[name] for name in ("actor", "counter", "kind", "name")}, "issued": entry["at_ms"]}
    return kid == ROOT.kid and payload == {**said, "content": content} and _signed(_ROOT_X, entry["token"])


def open_token(token: str, law: Law, use: str) -> Datum | None:
    """What a token says, if one of the keys signed it while it might, for this use."""
    read = _read(token)
    if read is None:
        return None
    kid, payload = read
    key, issued = law.keys.get(kid), payload["issued"]
    if key is None or key["use"] != use or payload.get("kind") != use or key["revoked"]:
        return None
    if key["actors"] and payload["actor"] not in key["actors"]:
        return None
    if issued < key["not_before_ms"] or (key["retired_ms"] and issued >= key["retired_ms"]):
        return None
    return payload if _signed(key["x"], token) else None


@lru_cache(maxsize=4_096)
def _read(token: str) -> tuple[str, Datum] | None:
    try:
        head, body, _ = token.split(".")
        kid, payload = json.loads(_bytes(head))["kid"], json.loads(_bytes(body))
        return (kid, payload) if type(payload["issued"]) is int else None
    except (ValueError, KeyError, TypeError):
        return None


@lru_cache(maxsize=4_096)
def _signed(x: str, token: str) -> bool:
    text, _, signature = token.rpartition(".")
    try:
        Ed25519PublicKey.from_public_bytes(_bytes(x)).verify(_bytes(signature), text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def payload_of(token: str) -> Datum:
    """What a token says, signed or not. **Raises** ValueError where there is no token."""
    _, body, _ = token.split(".")
    payload: Datum = json.loads(_bytes(body))
    return payload


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
