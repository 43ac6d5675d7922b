"""Standing grants: what people said once and for a while, of the same call.

Nothing here is a cache: every grant is a signed decision in the log, every use of it another one, and its end is a
signed vote.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from refold.core.approval import decision, signature
from refold.core.approval.ballot import Outcome, Void, Vote
from refold.core.approval.catalog import Catalog, Roles
from refold.core.approval.decision import Decision, Grant
from refold.core.approval.signature import PublicKey
from refold.core.errors import UnauthorisedError
from refold.core.messages import ApprovalRequest

Call = tuple[str, ...]


@dataclass(slots=True)
class Standing:
    """A grant by the decision that gave it.

    `shown`: its record stands in this partition. `sending` is what is on its way to all partitions: `shown`, `gone` or
    nothing.
    """

    given: Decision
    grant: Grant
    token: str
    revoked: bool = False
    shown: bool = False
    sending: str = ""


class Grants:
    """The grants that one partition knows, and which uses of them there were."""

    def __init__(self) -> None:
        self._known: dict[str, Standing] = {}
        self._by_call: dict[Call, set[str]] = defaultdict(set)
        self._uses: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)

    def __contains__(self, grant: str) -> bool:
        return grant in self._known

    def __iter__(self) -> Iterator[Standing]:
        return iter(list(self._known.values()))

    def get(self, grant: str) -> Standing | None:
        """A grant by the id of the approval that gave it."""
        return self._known.get(grant)

    def take(self, found: Decision, token: str) -> Standing | None:
        """Learns of a signed decision: it gives a grant, or uses one, or neither."""
        grant = found.grant
        if grant is None:
            return None
        if grant.use:
            self._uses[grant.id, found.run].setdefault(grant.use, found.approval)
            return None
        if grant.id != found.approval or found.verdict != "approve":
            return None
        self._by_call[_call_of(found, grant)].add(grant.id)
        return self._known.setdefault(grant.id, Standing(found, grant, token))

    def drop(self, grant: str) -> None:
        """Forgets a grant that is gone from the log."""
        if standing := self._known.pop(grant, None):
            self._by_call[_call_of(standing.given, standing.grant)].discard(grant)

    def use(self, request: ApprovalRequest, catalog: Catalog, now: int) -> Outcome | None:
        """The decision that a grant makes of a request, if one covers it: the next use of the oldest such grant.

        A call that is asked about once more is for people: the grant has let it out before, and that did not do.
        """
        if request.attempt != 1:
            return None
        for name in sorted(self._by_call.get(_call_asked(request), ())):
            standing = self._known[name]
            used = self._uses.get((name, request.run_id), {})
            number = max(used, default=0) + 1
            if number > standing.grant.uses or not _covers(standing, request, catalog.roles, now):
                continue
            if _holds(standing, catalog.keys):
                used_now = standing.grant._replace(use=number)
                return Outcome("approve", standing.given.votes, message=standing.given.message, grant=used_now)
        return None

    def revoke(self, vote: Vote, roles: Roles) -> Void | None:
        """Ends a grant by the word of somebody who might have given it; why not, if it does not."""
        standing = self._known.get(vote.approval)
        if standing is None:
            return Void("no_grant", "there is no such grant")
        given = standing.given
        if (vote.question, vote.environment) != (given.question, given.environment):
            return Void("wrong_question", "the vote answers another question")
        entitled = decision.behind(given)
        if not roles.entitled(entitled, vote.actor, vote.roles):
            return Void("unentitled", f"{vote.actor} is none of {', '.join(entitled)}")
        standing.revoked = True
        return None


def _holds(standing: Standing, keys: Mapping[str, PublicKey]) -> bool:
    """Whether the signature that a grant rests on is good by the keys as they are now."""
    try:
        signature.verify(standing.token, keys, use="decision")
    except UnauthorisedError:
        return False
    return True


def _covers(standing: Standing, request: ApprovalRequest, roles: Roles, now: int) -> bool:
    given, grant, needed = standing.given, standing.grant, request.requirement
    same_place = (
        given.run == request.run_id
        if grant.scope == "run"
        else bool(grant.session) and grant.session == request.session
    )
    people = {by.actor for by in given.votes}
    own = needed.not_requester and request.requester in people
    return (
        same_place
        and not standing.revoked
        and now < grant.until_ms
        and not own
        and len(people) >= needed.quorum
        and decision.disowned(given, roles) is None
    )


def _call_of(given: Decision, grant: Grant) -> Call:
    return (
        *(given.tool, given.version, given.schema, given.effect, given.args),
        *(given.environment, given.policy, grant.rule),
    )


def _call_asked(request: ApprovalRequest) -> Call:
    return (
        *(request.tool, request.version, request.schema, request.effect, decision.args_digest(request.args)),
        *(request.environment, request.policy, request.rule),
    )
