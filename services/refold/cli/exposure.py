"""Where nobody is asked who he is. Whoever reaches such a Kafka or Redis decides for Refold, so off this machine no
service starts beside it, unless it is told to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import structlog

from refold.adapters.kafka.acls import may_do_everything, may_write
from refold.adapters.kafka.topics import Topics
from refold.adapters.redis.ledger import RedisLedger
from refold.client.addresses import is_here
from refold.core.errors import UsageError
from refold.core.topics import CATALOG
from refold.runtime.settings import KafkaSettings

ALLOW = "REFOLD_ALLOW_OPEN"

_log = structlog.get_logger()


class Hole(NamedTuple):
    """What lets in everybody who reaches it, how to mend it, and whether others than this machine do."""

    what: str
    mend: str
    far: bool


def kafka_holes(settings: KafkaSettings, topics: Topics) -> Iterator[Hole]:
    """Of a Kafka that others reach: where it lets a service do what no service may. **Raises** UnreachableError."""
    # Where it says that it is counts as well: the address may be that of a tunnel.
    far = not all(is_here(server) for server in (*settings.bootstrap.split(","), *topics.hosts))
    if far and (may_do_everything(settings) or may_write(settings, CATALOG)):
        yield Hole(
            f"the Kafka at {settings.bootstrap} lets this service do what none may: "
            "it has no authorizer, or this principal has too many rights",
            "an authorizer, a principal for each service, and `refold topics acls --apply`",
            far,
        )


def redis_holes(ledger: RedisLedger, key: bytes) -> Iterator[Hole]:
    """Of the servers of a ledger. `key` is that of the pool. **Raises** UnreachableError."""
    far = not all(map(is_here, ledger.servers()))
    if far and ledger.open_to_all():
        mend = "a user with a password for each pool, in REFOLD_REDIS__URL"
        yield Hole("Redis lets in whoever has no password", mend, far)
    if not key:
        mend = "the key of the pool, `openssl rand -hex 32`, as REFOLD_EXECUTOR__LEDGER_KEY"
        yield Hole("whoever writes this Redis may answer for tools: the ledger has no key", mend, far)


def accept(holes: Iterable[Hole], *, allowed: bool) -> None:
    """Goes on with a warning beside what only this machine reaches, or what is allowed. **Raises** UsageError."""
    for hole in holes:
        if hole.far and not allowed:
            raise UsageError(hole.what, hint=f"{hole.mend}; or {ALLOW}=true, where nobody else reaches it")
        _log.warning("service.open", problem=hole.what, hint=hole.mend)
