"""One open approval: the question, and what has been said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from refold.core import ballot
from refold.core.ballot import Void, Vote
from refold.core.catalog import Catalog
from refold.core.errors import MalformedError, UnauthorisedError, UsageError
from refold.core.messages import ApprovalRequest
from refold.ports.log import Record
from refold.sdk.tool import ToolDef

Tools = Mapping[str, ToolDef]


@dataclass(slots=True)
class Poll:
    """An approval until the planner closes it.

    `tokens` are the votes as they came, `fresh` those whose senders have no answer yet, `decided` is the token of the
    decision, `told` whether anybody was told what it waits for besides votes.
    """

    request: ApprovalRequest
    tokens: dict[str, None] = field(default_factory=dict)
    fresh: list[tuple[Record, str]] = field(default_factory=list)
    decided: str = ""
    told: bool = False
    _read: dict[str, Vote | Void] = field(default_factory=dict)

    def forget(self) -> None:
        """Keys or roles have changed: every vote is read again."""
        self._read.clear()

    def read(self, token: str, catalog: Catalog, tools: Tools) -> Vote | Void:
        """The vote in a token, or why it cannot be one."""
        found = self._read.get(token)
        if found is None:
            found = self._read[token] = open_vote(token, catalog)
            if isinstance(found, Vote) and (problem := unfit(self.request, found, tools)):
                found = self._read[token] = problem
        return found

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
