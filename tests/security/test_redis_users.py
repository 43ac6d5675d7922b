"""A user of Redis for each pool, as the guide makes it: the ledger works, and nothing of another pool is reached."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from refold.adapters.redis.ledger import RedisLedger
from refold.core.errors import UnreachableError
from refold.core.ids import CallId
from refold.embedded.valkey import EmbeddedValkey
from refold.ports.ledger import (
    Claim,
    Claimed,
    Close,
    Complete,
    Completed,
    Fill,
    Lapsed,
    Operation,
    Release,
    Renew,
    Renewed,
    Sent,
    SetAside,
    Unlist,
    Unpublished,
)

GUIDE = Path(__file__).parents[2] / "docs/guides/keys-and-acls.md"
MOST_MS = 3_600_000


def every(pool: str) -> list[Operation]:
    call = CallId("r-1/2")
    return [
        Claim(7, pool, "k", call, 1, "ann", MOST_MS, b"order"),
        Renew(7, pool, "k", call, 1, "ann", MOST_MS, b"order"),
        Complete(7, pool, "k", call, 1, "ann", True, b"result"),
        Unpublished(7, pool, 10),
        Sent(7, pool, ("r-1/2#1",)),
        Lapsed(7, pool, 10),
        Unlist(7, pool, ("k",)),
        SetAside(7, pool, leases=("k",)),
        Release(7, pool, "k", "ann"),
        Close(7, pool, (("k", call),)),
        Fill(7, pool),
    ]


def test_the_user_of_a_pool_reaches_nothing_of_another(valkey: EmbeddedValkey) -> None:
    prefix, user = f"t{uuid4().hex}", f"payments-{uuid4().hex[:8]}"
    found = re.search(r"ACL SETUSER payments ([^`]*)", GUIDE.read_text())
    assert found, "the guide says how"
    words = found[1].replace("PASSWORD", "secret").replace("refold:", f"{prefix}:").split()
    client = redis.Redis.from_url(valkey.url)
    client.execute_command("ACL", "SETUSER", user, *words)
    mine = RedisLedger(valkey.url.replace("redis://", f"redis://{user}:secret@"), prefix=prefix)

    replies = mine.run(every("payments"))

    assert replies[:3] == [Claimed(False), Renewed(False), Completed("r-1/2#1")]
    for operation in every("web"):
        with pytest.raises(UnreachableError, match="refuses"):
            mine.run([operation])
    assert {key.decode().split(":")[1] for key in client.scan_iter(match=f"{prefix}:*")} == {"payments"}
    mine.close()
    client.execute_command("ACL", "DELUSER", user)
