"""One open approval: the question, and what has been said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from refold.core.approval import ballot
from refold.core.approval.ballot import Count, Void, Vote
from refold.core.approval.catalog import Catalog, Roles
from refold.core.errors import MalformedError, UnauthorisedError, UsageError
from refold.core.messages import ApprovalRequest
from refold.core.wire import canonical
from refold.ports.log import Record
from refold.sdk.tool import ToolDef

Tools = Mapping[str, ToolDef]
KEPT = (*ballot.SAYING, "reassign")
"""What a verdict is worked out from. Whatever else is said is answered once."""


@dataclass(slots=True)
class Poll:
    """An approval until the planner closes it.

    `tokens` are the votes as they came, `fresh` those whose senders have no answer yet, `decided` is the token of the
    decision, `told` is what was told of what it waits for besides votes. `said_bytes` is the most that a vote may say.
    """

    request: ApprovalRequest
    said_bytes: int
    tokens: dict[str, None] = field(default_factory=dict)
    fresh: list[tuple[Record, str]] = field(default_factory=list)
    decided: str = ""
    told: str = ""
    _read: dict[str, Vote | Void] = field(default_factory=dict)

    def forget(self) -> None:
        """Keys have changed: every vote is read again."""
        self._read.clear()

    def read(self, token: str, catalog: Catalog, tools: Tools) -> Vote | Void:
        """The vote in a token, or why it cannot be one."""
        found = self._read.get(token)
        if found is None:
            found = self._read[token] = open_vote(token, catalog)
            if isinstance(found, Vote):
                found = self._read[token] = (
                    oversized(found, self.said_bytes) or unfit(self.request, found, tools) or found
                )
        return found

    def make_room(self, count: Count, roles: Roles, limit: int) -> bool:
        """Drops votes over the limit, and tells whether it did: what does not count goes first, then what came last."""
        over = len(self.tokens) - limit
        if over <= 0:
            return False
        votes = [vote for vote in self._read.values() if isinstance(vote, Vote) and vote not in count.void]
        last = {vote.actor: vote for vote in sorted(votes, key=ballot.order) if vote.action in ballot.SAYING}

        def counts(found: Vote | Void) -> int:
            if isinstance(found, Void) or found in count.void or found.action not in KEPT:
                return 0
            if found.action in ballot.SAYING and found != last[found.actor]:
                return 0
            # Anybody may withdraw. It goes after what it takes back, so that nothing that was taken back is left.
            alien = found.action == "withdraw" and not roles.entitled(count.approvers, found.actor, found.roles)
            return 1 if alien else 2

        ranked: tuple[list[str], ...] = ([], [], [])
        for token in self.tokens:
            ranked[counts(self._read[token])].append(token)
        for token in [*ranked[0], *ranked[1], *reversed(ranked[2])][:over]:
            del self.tokens[token]
        return True

    def tidy(self) -> None:
        """Forgets what was answered and will not be asked again."""
        for token, found in self._read.items():
            if self.decided or (isinstance(found, Vote) and found.action not in KEPT):
                self.tokens.pop(token, None)
        self._read = {token: found for token, found in self._read.items() if token in self.tokens}

    def votes(self, catalog: Catalog, tools: Tools) -> Iterator[Vote]:
        """The votes that say something."""
        for token in self.tokens:
            if isinstance(found := self.read(token, catalog, tools), Vote):
                yield found


def open_vote(token: str, catalog: Catalog) -> Vote | Void:
    """The vote in a token whose signature is good by the keys of the catalog."""
    try:
        return ballot.opened(token, catalog.keys)
    except UnauthorisedError as error:
        return Void("unauthorised", error.message)
    except MalformedError as error:
        return Void("malformed", error.message)


def oversized(vote: Vote, limit: int) -> Void | None:
    """Why a vote says more than a decision can hold. **Units**: bytes of JSON, so a quote or a new line takes two.

    A message counts twice: a rejection is told by the decision, by the failure of the call and by that of the run.
    """
    size = len(canonical.dumps([vote.args, vote.result, vote.message, vote.message]).encode())
    if size <= limit:
        return None
    what = "arguments, result and twice the message of the vote"
    return Void("too_large", f"{what} have {size} bytes as JSON, and a decision takes at most {limit}")


def unfit(request: ApprovalRequest, vote: Vote, tools: Tools) -> Void | None:
    """Why the tool that this process knows cannot take new arguments or a result of a vote."""
    if vote.action not in ("edit", "answer"):
        return None
    tool = tools.get(request.tool)
    if tool is None:
        return Void("edit_not_possible", f"the approval service does not know the tool {request.tool}")
    if (tool.facts.version, tool.facts.schema) != (request.version, request.schema):
        return Void("edit_not_possible", f"the approval service knows another version of the tool {request.tool}")
    try:
        if vote.action == "edit":
            tool.arguments.load(vote.args)
        else:
            tool.result.load(vote.result)
    except UsageError as error:
        return Void("edit_not_possible", str(error))
    return None
