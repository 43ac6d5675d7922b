"""Who holds a lease, by what the ledger has answered: nobody else is given the call while it lasts."""

from __future__ import annotations

from refold.engine.ports.ledger import (
    Claim,
    Claimed,
    Close,
    Complete,
    Fenced,
    HandOver,
    Lapsed,
    Operation,
    Release,
    Renew,
    Renewed,
    Reply,
    SetAside,
    Unlist,
)


class Leases:
    """By home and key: under which token, of which member, until when on the ledger's clock.

    What may be repeated is also given to who has the name of its holder, for that is dead, or as good as dead.
    `chained` are the keys of calls that may not.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int, str, str], tuple[str, str, int]] = {}
        self.chained: set[str] = set()
        self.wrong: list[str] = []

    def forgets(self) -> None:
        """The ledger may have lost anything."""
        self._held.clear()

    def answers(self, member: str, what: Operation, reply: Reply, *, now_ms: int) -> None:
        """The ledger answers a member."""
        if isinstance(what, Lapsed) and what.heir:
            self._makes_room(member, what)
        if isinstance(what, (SetAside, Unlist, Close)):
            # Of a call that is taken back whoever has the lease keeps it.
            closed = [key for key, _, attempt in what.calls if not attempt] if isinstance(what, Close) else what.leases
            for name in closed:
                self._held.pop((what.home, what.pool, name), None)
        elif isinstance(what, (Release, HandOver, Complete)) and reply != Fenced():
            self._held.pop((what.home, what.pool, what.key), None)
        elif isinstance(what, (Claim, Renew)) and (isinstance(reply, Claimed) or reply == Renewed(closed=False)):
            self._given(member, what, now_ms)

    def _makes_room(self, member: str, what: Lapsed) -> None:
        """Leases of its own name are for whoever comes first."""
        for at, (token, holder, _) in self._held.items():
            if at[:2] == (what.home, what.pool) and holder == member and at[2] not in self.chained:
                self._held[at] = token, holder, 0

    def _given(self, member: str, what: Claim | Renew, now_ms: int) -> None:
        at = what.home, what.pool, what.key
        if isinstance(what, Claim) and self._held.get(at, ("",))[0] == what.token:
            return  # asked once more, as the answer was lost: the lease is that of the first time
        token, holder, until_ms = self._held.get(at, (what.token, member, 0))
        if token != what.token and until_ms > now_ms and (holder != member or what.key in self.chained):
            self.wrong.append(f"lease: {what.call} is given to {member} while {holder} has it for some more")
        self._held[at] = what.token, member, now_ms + what.lease_ms
