"""The ledger of effects: who may act on a call, what came of it, and the outbox that carries it on.

Fast and forgetful: it may be wiped or rolled back at any moment, and what then keeps effects single is the effect
class and, for `probed` and `once`, the claim chain. Every operation is one atomic script, reads and checks first,
writes last; its clock is the ledger's own. Operations of one batch are pipelined and independent of each other.

An entry is named by the idempotency key, so an effect meets what is known of it whatever becomes of a run's history.
Nothing of one pool is of another: not even a key that both have.
It is STARTED (token, attempt, lease) or DONE (attempt, success, result), remembers the call that it was made for, and
a tombstone makes a CLOSED one of it: a marker that has lost order and result and goes soon. **Another call** is one
with the same key in another life of the run (its history was lost or copied): its attempts are counted anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol

from refold.core.ids import CallId

DEFAULT_RETENTION = timedelta(days=7)
"""The time what is done and was never closed is remembered. What comes back later is refused by the planner."""

MARKER_RETENTION = timedelta(hours=1)
"""The time a closed entry is kept: for whoever was under way to it when the tombstone came."""

ASIDE, ASIDE_MOST_BYTES = 100, 65_536
"""Of what nobody can use: enough to see what it is, and whose."""

LONGEST_LEASE = timedelta(hours=1)
"""A lease further ahead than this has lapsed: the ledger's clock was ahead when it was given, and was corrected."""

STARTED_RETENTION = timedelta(days=30)
"""The time a started entry is kept after its last renewal; worst case, the longest outage of all executors."""


class Claim(NamedTuple):
    """May I act on this attempt? `token` is fresh per claim and reused only to resend the very same claim.

    In this order: CLOSED -> `Superseded`; DONE with success (any attempt) or DONE with this attempt -> `Stored`; an
    attempt that was taken back, or a lower one than the entry's -> `Superseded`; STARTED with the same token ->
    the answer of the first time; STARTED, same or lower attempt on record, lease alive -> `Busy`; else STARTED under
    the new token -> `Claimed`. Where the entry is of another call, a success is `Stored`, a live lease is `Busy`, and
    all else is taken over. `order` says where the order lies, for whoever takes a lapsed lease over. `owner` is whose
    heir may end the lease (`owner_of`), where repeating the call is safe; "": nobody's.
    """

    home: int
    pool: str
    key: str
    call: CallId
    attempt: int
    token: str
    lease_ms: int
    order: bytes
    owner: str = ""


class Renew(NamedTuple):
    """Keep my lease. An entry that is gone is made again, not as a takeover. -> `Renewed` or `Fenced`.

    The `owner` is the one that it names now.

    CLOSED or DONE under this token -> `Renewed(closed=True)`, and nothing is written.
    """

    home: int
    pool: str
    key: str
    call: CallId
    attempt: int
    token: str
    lease_ms: int
    order: bytes
    owner: str = ""


class Release(NamedTuple):
    """I do not act: the entry that is STARTED under my token goes, or names the claim before mine, if any. -> None."""

    home: int
    pool: str
    key: str
    token: str


class HandOver(NamedTuple):
    """I stop here: the lease is over now, so that whoever looks for lapsed ones goes on at once. -> None.

    If it is still STARTED under my token. Unless it has `begun`, the token goes as well, and a claim of the same call
    that follows is no more of a takeover than mine was.
    """

    home: int
    pool: str
    key: str
    token: str
    begun: bool


class Complete(NamedTuple):
    """This is what came of it: entry DONE and result into the outbox, in one script. Repeatable.

    STARTED under this token, or no entry at all, or DONE under this token (its first result stands) -> `Completed`. So
    is what is CLOSED under this token, and the result lies in the outbox alone. Anything else -> `Fenced`, and nothing
    is written.
    """

    home: int
    pool: str
    key: str
    call: CallId
    attempt: int
    token: str
    success: bool
    result: bytes


class Close(NamedTuple):
    """These calls, each with its key, are settled or cancelled: their entries are CLOSED and never lapse. -> None.

    Of a call with an attempt above 0 the orders up to that attempt are taken back: its entry stays as it is, does not
    lapse, and lets no such attempt in. An entry of another call, or of a higher attempt, stays as it is.
    """

    home: int
    pool: str
    calls: tuple[tuple[str, CallId, int], ...]


class Lapsed(NamedTuple):
    """The STARTED entries whose lease has run out, or is further ahead than one can be.

    -> list of (key, `order`), at most `limit`. With an `heir` (`owner_of`), the leases end first whose owner is another
    incarnation of the same member.
    """

    home: int
    pool: str
    limit: int
    heir: str = ""


class Unpublished(NamedTuple):
    """Records of the outbox. -> list of (field, result), any `limit` of them, in any order.

    **Units**: it ends with the result that brings it to `most_bytes`, so one of any size comes.
    """

    home: int
    pool: str
    limit: int
    most_bytes: int = 8 << 20


class Sent(NamedTuple):
    """These outbox fields have been published and acknowledged: drop them. -> None."""

    home: int
    pool: str
    fields: tuple[str, ...]


class SetAside(NamedTuple):
    """What these leases and outbox fields hold is of no use: it is found no more, and kept to be looked at. -> None.

    An entry whose lease goes stays, and whoever claims it next takes it over. With `broken` leases an entry goes as
    well, and so does the whole index or outbox if it is nothing that this ledger has written.
    **JsonCodec**: of a home and pool `ASIDE` are kept, up to `ASIDE_MOST_BYTES` each, until a week after the last one.
    """

    home: int
    pool: str
    leases: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


class Unlist(NamedTuple):
    """The orders of these keys are not there any more: their leases do not lapse again. -> None.

    Their entries stay, and whoever claims one next takes it over.
    """

    home: int
    pool: str
    leases: tuple[str, ...]


class Fill(NamedTuple):
    """How full is the server that has this home? -> `Filled`."""

    home: int
    pool: str


class Claimed(NamedTuple):
    """Act. `after`: a takeover, of the claim with this token: it is STARTED and its lease has lapsed, or it is of
    another call. Whoever handed a call over before it had begun, or let go of it, leaves it as it was found.

    A lower attempt that is DONE is known to be over, so following it is no takeover.
    """

    after: str = ""


class Busy(NamedTuple):
    """Somebody acts on it, for `wait_ms` more unless they renew."""

    wait_ms: int


class Superseded(NamedTuple):
    """A higher attempt is on record, or the call is `closed`; with both, this attempt was taken back.

    `sealed` is what its executor has put there: the result of the higher one, if that is `done`, or where its order is.
    """

    closed: bool
    sealed: bytes = b""
    done: bool = False


class Stored(NamedTuple):
    """It is done, and this is what came of it, be it as another attempt or another call."""

    result: bytes


class Renewed(NamedTuple):
    """The lease is longer. `closed`: the call is settled or cancelled, stop."""

    closed: bool


class Completed(NamedTuple):
    """The result is in ledger and outbox, there under `field`."""

    field: str


class Fenced(NamedTuple):
    """Somebody else's token stands there."""


class Broken(NamedTuple):
    """What stands there was not written by this ledger, and the operation did nothing."""


class Filled(NamedTuple):
    """**Units**: bytes; a `limit` of 0 is none."""

    used: int
    limit: int


Operation = (
    Claim | Renew | Release | HandOver | Complete | Close | Lapsed | Unpublished | Sent | SetAside | Unlist | Fill
)
_Judged = Claimed | Busy | Superseded | Stored | Renewed | Completed | Fenced | Broken
Reply = _Judged | Filled | list[tuple[str, bytes]] | None


def outbox_field(call: CallId, attempt: int) -> str:
    """The name of a result in the outbox: for which attempt of which call it is. No call id holds a `#`."""
    return f"{call}#{attempt}"


def owner_of(incarnation: str, member: str) -> str:
    """The name of a process as an owner or heir. No incarnation has a `/` in it; members may."""
    return f"{incarnation}/{member}"


def inherits(heir: str, owner: str) -> bool:
    """True if the owner of a lease is the same member as the heir, in another incarnation."""
    (mine, _, member), (theirs, named, other) = heir.partition("/"), owner.partition("/")
    return bool(named) and member == other and mine != theirs


class Ledger(Protocol):
    """Runs operations; keys of one home share a hash tag, so a cluster shards as the log does."""

    def run(self, operations: Sequence[Operation]) -> list[Reply]:
        """One reply per operation, in order.

        **Raises** UnreachableError: every outcome of the batch is unknown, and the same batch may be sent again.
        """
        ...

    def problems(self) -> list[str]:
        """Faults of the live server's settings (durability, eviction); empty when there are none."""
        ...
