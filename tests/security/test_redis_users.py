"""A user of Redis for each pool, as the guide makes it: the ledger works, and nothing of another pool is reached."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from refold.core.errors import UnreachableError
from refold.core.ids import CallId
from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.redis.ledger import RedisLedger
from refold.engine.ports.ledger import (
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
        Lapsed(7, pool, 10, "i/executor-1"),
        Unlist(7, pool, ("k",)),
        SetAside(7, pool, leases=("k",)),
        Release(7, pool, "k", "ann"),
        Close(7, pool, (("k", call, 0),)),
        Fill(7, pool),
    ]


def test_the_user_of_a_pool_reaches_nothing_of_another(valkey: EmbeddedValkey) -> None:
    prefix, user = f"t{uuid4().hex}", f"payments-{uuid4().hex[:8]}"
    client = redis.Redis.from_url(valkey.url)
    client.execute_command("ACL", "SETUSER", user, *words_of("secret", prefix))
    mine = RedisLedger(valkey.url.replace("redis://", f"redis://{user}:secret@"), prefix=prefix)

    replies = mine.run(every("payments"))

    assert replies[:3] == [Claimed(), Renewed(False), Completed("r-1/2#1")]
    for operation in every("web"):
        with pytest.raises(UnreachableError, match="refuses"):
            mine.run([operation])
    assert {key.decode().split(":")[1] for key in client.scan_iter(match=f"{prefix}:*")} == {"payments"}
    mine.close()
    client.execute_command("ACL", "DELUSER", user)


def test_the_user_of_a_pool_has_the_commands_of_the_ledger_and_no_other(valkey: EmbeddedValkey) -> None:
    user, client = f"payments-{uuid4().hex[:8]}", redis.Redis.from_url(valkey.url)
    client.execute_command("ACL", "SETUSER", user, *words_of("secret", "refold"))
    named = {word[1:] for word in words_of("secret", "refold") if word.startswith("+")}

    allowed = {name for name, arity in commands(client) if may(client, user, name, arity)}

    assert not {word for word in named if "@" in word}
    assert allowed - {"quit", "reset"} == named  # whatever a user may do, it may hang up
    client.execute_command("ACL", "DELUSER", user)


def words_of(password: str, prefix: str) -> list[str]:
    """The rights of a pool's user, as the guide gives them."""
    found = re.search(r"ACL SETUSER executor-payments ([^`]*)", GUIDE.read_text())
    assert found, "the guide says how"
    return found[1].replace("PASSWORD", password).replace("refold:", f"{prefix}:").split()


def commands(client: redis.Redis) -> list[tuple[str, int]]:
    """Every command of the server with its arity, those below another too: `client|kill`."""
    connection = client.connection_pool.get_connection()
    connection.send_command("COMMAND")
    found = []
    for name, arity, *_, below in connection.read_response():
        found += [(each[0].decode(), each[1]) for each in below] if below else [(name.decode(), arity)]
    client.connection_pool.release(connection)
    return found


def may(client: redis.Redis, user: str, name: str, arity: int) -> bool:
    """Whether a user may give a command, about keys of its own pool."""
    words = name.split("|")
    more = ["refold:payments:x"] * (max(abs(arity), len(words)) - len(words))
    try:
        answer = client.execute_command("ACL", "DRYRUN", user, *words, *more)
    except redis.ResponseError as error:
        answer = str(error).encode()
    return b"no permissions to run" not in answer
