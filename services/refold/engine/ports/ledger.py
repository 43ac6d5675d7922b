"""The ledger of effects: the right to act on a call, its result, and the outbox that publishes it. It may be wiped or
rolled back at any moment; then the effect class keeps effects single, and for `probed` and `once` the claim chain.
Every operation is one atomic script on the ledger's own clock: reads and checks first, writes last. Operations of a
batch are independent.

The idempotency key names an entry, in any life of the run. Pools share nothing, not even equal keys. An entry is
STARTED (token, attempt, lease) or DONE (attempt, success, result); a tombstone makes it CLOSED, a marker that expires
soon. **Another call** is one with the same key in another life of the run (its history was lost or copied): its
attempts are counted from 1.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol

from refold.core.ids import CallId

DEFAULT_RETENTION = timedelta(days=7)
"""Retention of a done entry that was never closed. The planner refuses later results."""

MARKER_RETENTION = timedelta(hours=1)
"""Retention of a closed entry, for claims in transit when the tombstone came."""

ASIDE, ASIDE_MOST_BYTES = 100, 65_536
"""Limits of unusable records kept for inspection: their number, and the bytes of each."""

LONGEST_LEASE = timedelta(hours=1)
"""A lease further ahead has lapsed: the ledger's clock was ahead when it was given."""

STARTED_RETENTION = timedelta(days=30)
"""Retention of a started entry after its last renewal; worst case, the longest outage of all executors."""


class Claim(NamedTuple):
    """Claim the right to act on an attempt. `token` is fresh per claim and reused only to resend the same claim. In
    this order: CLOSED -> `Superseded`; DONE with success (any attempt) or DONE with this attempt -> `Stored`; a revoked
    attempt, or a lower one than the entry's -> `Superseded`; STARTED with the same token -> the first answer; STARTED,
    same or lower attempt on record, lease alive -> `Busy`; else STARTED under the new token -> `Claimed`. If the entry
    is of another call, a success is `Stored`, a live lease is `Busy`, and any other state is taken over. `order` is the
    order's place, for the successor of a lapsed lease. `owner` (`owner_of`) allows its heir to end the lease, if a
    repeated call is safe; "": no owner."""

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
    """Extend a lease; `owner` replaces the recorded one. A missing entry is created again, not as a takeover. ->
    `Renewed` or `Fenced`. CLOSED or DONE under this token -> `Renewed(closed=True)`, and nothing is written."""

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
    """Give up a claim: the entry STARTED under its token is removed, or names the claim before it. -> None."""

    home: int
    pool: str
    key: str
    token: str


class HandOver(NamedTuple):
    """End the lease now, if still STARTED under this token: the next search for lapsed ones continues the call. ->
    None. Without `begun` the token is removed too, and a later claim is no more of a takeover than this one."""

    home: int
    pool: str
    key: str
    token: str
    begun: bool


class Complete(NamedTuple):
    """Record a result: entry DONE and result into the outbox, in one script. Repeatable. STARTED under this token, no
    entry, or DONE under this token (its first result stays) -> `Completed`; also CLOSED under this token, with the
    result in the outbox alone. Else -> `Fenced`, and nothing is written."""

    home: int
    pool: str
    key: str
    call: CallId
    attempt: int
    token: str
    success: bool
    result: bytes


class Close(NamedTuple):
    """Close settled or cancelled calls: their entries are CLOSED and never lapse. -> None. An attempt above 0 only
    revokes orders up to it: the entry stays, and does not lapse. Entries of other calls or higher attempts do not
    change."""

    home: int
    pool: str
    calls: tuple[tuple[str, CallId, int], ...]


class Lapsed(NamedTuple):
    """STARTED entries whose lease has run out, or is too far ahead. -> list of (key, `order`), at most `limit`. Leases
    of another incarnation of the `heir` (`owner_of`) are ended first."""

    home: int
    pool: str
    limit: int
    heir: str = ""


class Unpublished(NamedTuple):
    """Records of the outbox. -> list of (field, result), at most `limit`, in any order. **Units**: ends with the result
    that reaches `most_bytes`, so one of any size comes."""

    home: int
    pool: str
    limit: int
    most_bytes: int = 8 << 20


class Sent(NamedTuple):
    """Drop outbox fields that were published and acknowledged. -> None."""

    home: int
    pool: str
    fields: tuple[str, ...]


class SetAside(NamedTuple):
    """Set unusable leases and outbox fields aside, for inspection. -> None. The entry of such a lease stays for the
    next claim. With `broken` leases the entry is removed too, and the whole index or outbox if this ledger has not
    written it. **Shape**: `ASIDE` per home and pool, up to `ASIDE_MOST_BYTES` each, until a week after the last one."""

    home: int
    pool: str
    leases: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


class Unlist(NamedTuple):
    """Drop the leases of keys whose orders are gone, so that they do not lapse again. -> None. Their entries stay."""

    home: int
    pool: str
    leases: tuple[str, ...]


class Fill(NamedTuple):
    """Fill level of the server of this home. -> `Filled`."""

    home: int
    pool: str


class Claimed(NamedTuple):
    """The claim is granted. `after`: token of the claim taken over, STARTED with a lapsed lease or of another call; not
    of one that was released, handed over before it had begun, or DONE as a lower attempt."""

    after: str = ""


class Busy(NamedTuple):
    """Another executor has the lease, for `wait_ms` more unless it renews."""

    wait_ms: int


class Superseded(NamedTuple):
    """A higher attempt is on record, or the call is `closed`; with both, this attempt was revoked. `sealed` is the
    higher one's result if `done`, else the place of its order."""

    closed: bool
    sealed: bytes = b""
    done: bool = False


class Stored(NamedTuple):
    """Result of a call that is done, maybe as another attempt or another call."""

    result: bytes


class Renewed(NamedTuple):
    """The lease is longer. `closed`: the call is settled or cancelled, so stop."""

    closed: bool


class Completed(NamedTuple):
    """The result is in ledger and outbox, there under `field`."""

    field: str


class Fenced(NamedTuple):
    """The entry has another token."""


class Broken(NamedTuple):
    """The entry was not written by this ledger, and the operation had no effect."""


class Filled(NamedTuple):
    """Bytes used and their limit; a `limit` of 0 is none."""

    used: int
    limit: int


Operation = (
    Claim | Renew | Release | HandOver | Complete | Close | Lapsed | Unpublished | Sent | SetAside | Unlist | Fill
)
_Judged = Claimed | Busy | Superseded | Stored | Renewed | Completed | Fenced | Broken
Reply = _Judged | Filled | list[tuple[str, bytes]] | None


def outbox_field(call: CallId, attempt: int) -> str:
    """Return the name of a result in the outbox. No call id contains a `#`."""
    return f"{call}#{attempt}"


def owner_of(incarnation: str, member: str) -> str:
    """Return the name of a process as an owner or heir. No incarnation contains a `/`; members may."""
    return f"{incarnation}/{member}"


def inherits(heir: str, owner: str) -> bool:
    """True if `owner` is another incarnation of the member `heir`."""
    (own, _, member), (others, named, other) = heir.partition("/"), owner.partition("/")
    return bool(named) and member == other and own != others


class Ledger(Protocol):
    """Runs operations; keys of one home share a hash tag, so a cluster shards as the log does."""

    def run(self, operations: Sequence[Operation]) -> list[Reply]:
        """Run operations, with one reply each, in order. **Raises** UnreachableError: every outcome is unknown, and the
        same batch may be sent again."""
