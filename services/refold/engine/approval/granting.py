"""Grants: decisions that also hold, for a while, for the same call in the same run. Each grant and each use of it is a
signed decision in the log, and its end is a signed vote."""

from base64 import urlsafe_b64decode
from binascii import Error as Base64Error
from collections import defaultdict
from dataclasses import dataclass

from refold.core.approval import decision, signature
from refold.core.approval.ballot import BallotResult, Objection, Vote
from refold.core.approval.catalog import Catalog, Roles
from refold.core.approval.decision import RUN, Decision, Grant
from refold.core.approval.policy_check import unfounded
from refold.core.approval.requester import has_asked, quorum_of
from refold.core.errors import UnauthorisedError
from refold.core.messages import ApprovalRequest
from refold.core.wire.canonical import hex_digest

_Call = tuple[str, ...]


@dataclass(slots=True)
class Standing:
    """A grant, and the signed decision that gave it."""

    decision: Decision
    grant: Grant
    token: str
    revoked: bool = False

    def covers(self, request: ApprovalRequest, catalog: Catalog, now: int) -> bool:
        """True if it is in force for a request about its call, by the present roles and keys."""
        needed, people = request.requirement, {by.actor for by in self.decision.votes}
        own = needed.not_requester and any(has_asked(request, name) for name in people)
        if self.revoked or now >= self.grant.until_ms or own or len(people) < quorum_of(request, catalog.roles.askers):
            return False
        if unfounded(self.decision, catalog):  # later readers of the decision count its votes again
            return False
        try:
            signature.verified(self.token, catalog.keys, use="decision")
        except UnauthorisedError:
            return False
        return True


class Grants:
    """Grants of a lane by the call that they let out again, with the number of their uses."""

    def __init__(self) -> None:
        self._standing: dict[str, Standing] = {}
        self._by_call: dict[_Call, set[str]] = defaultdict(set)
        self._used: dict[str, int] = defaultdict(int)

    def __contains__(self, grant: str) -> bool:
        return grant in self._standing

    def take(self, decision: Decision, token: str) -> bool:
        """Add a signed decision; True if it gives a grant."""
        grant = decision.grant
        if grant is None or grant.scope != RUN:
            return False
        if grant.use:
            # Compaction may leave the use before the grant, if the grant's decision was written twice.
            self._used[grant.id] = max(self._used[grant.id], grant.use)
            return False
        if grant.id != decision.approval or decision.verdict != "approve":
            return False
        self._by_call[_call_of(decision, grant)].add(grant.id)
        self._standing.setdefault(grant.id, Standing(decision, grant, token))
        return True

    def use(self, request: ApprovalRequest, catalog: Catalog, now: int) -> BallotResult | None:
        """The next use of the oldest grant that covers a request, as its decision."""
        # A repeated question is for people: the grant has let the call out before, without success.
        if request.attempt != 1:
            return None
        for grant_id in sorted(self._by_call.get(_call_asked(request), ())):
            standing, use = self._standing[grant_id], self._used[grant_id] + 1
            if use <= standing.grant.uses and standing.covers(request, catalog, now):
                source = standing.decision
                grant = standing.grant._replace(use=use)
                return BallotResult("approve", source.votes, message=source.message, grant=grant, given=standing.token)
        return None

    def afterwards(self, vote: Vote, roles: Roles) -> Objection | None:
        """Apply a vote on a decided approval: it may end a grant. Return the reason if it does not count."""
        if vote.action == "revoke-grant":
            return self._revoke(vote, roles)
        return None if vote.action in ("comment", "remind") else Objection("late", "the approval is decided")

    def _revoke(self, vote: Vote, roles: Roles) -> Objection | None:
        standing = self._standing.get(vote.approval)
        if standing is None:
            return Objection("no_grant", "there is no such grant")
        granted = standing.decision
        if (vote.question, vote.environment) != (granted.question, granted.environment):
            return Objection("wrong_question", "the vote answers another question")
        entitled = decision.behind(granted)
        if not roles.entitled(entitled, vote.actor, vote.roles):
            return Objection("unentitled", f"{vote.actor} is none of {', '.join(entitled)}")
        standing.revoked = True
        return None


def may_grant(token: str) -> bool:
    """True if a token may contain a grant: a check much cheaper than verifying it."""
    payload = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        # In canonical JSON no text can contain these bytes: its quotes are escaped.
        return b'"grant":null' not in urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
    except (Base64Error, ValueError):
        return True


def _call_of(decision: Decision, grant: Grant) -> _Call:
    return (
        *(decision.run, decision.tool, decision.version, decision.schema, decision.effect, decision.args),
        *(decision.environment, decision.policy, grant.rule),
    )


def _call_asked(request: ApprovalRequest) -> _Call:
    return (
        *(request.run_id, request.tool, request.version, request.schema, request.effect),
        *(hex_digest(request.args), request.environment, request.policy, request.rule),
    )
