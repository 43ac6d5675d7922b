"""One open approval: the question and its votes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from refold.core.approval import ballot, policy_check
from refold.core.approval.ballot import BallotResult, Count, Objection, Vote
from refold.core.approval.catalog import Catalog, Roles
from refold.core.approval.decision import ToolFacts
from refold.core.approval.policy_check import suffices
from refold.core.approval.question import context_edited
from refold.core.errors import MalformedError, UnauthorisedError, UsageError
from refold.core.events import DOUBT
from refold.core.ids import asked_about
from refold.core.messages import ApprovalRequest
from refold.engine.approval.settings import ApprovalLimits
from refold.engine.ports.log import Record
from refold.engine.runtime.lanes import Recent, record_bytes
from refold.sdk.tool import ToolDef

ToolDefs = Mapping[str, ToolDef]
KEPT = (*ballot.STANCES, "reassign")
"""Actions of votes that form a verdict; all others are answered once."""


@dataclass(slots=True)
class OpenQuestion:
    """An approval until the planner closes it. `tokens` are the signed votes with their log times, `fresh` those
    without an answer; `token` is the decision's, `kept_back` the last reported reason why it waits."""

    request: ApprovalRequest
    message_bytes: int
    decided: bool = False
    token: str = ""
    kept_back: str = ""
    tokens: dict[str, int] = field(default_factory=dict)
    fresh: list[tuple[Record, str]] = field(default_factory=list)
    _read: dict[str, Vote | Objection] = field(default_factory=dict)

    def decide(self, token: str) -> None:
        self.decided, self.token = True, self.token or token

    def forget(self) -> None:
        self._read.clear()

    def read(self, token: str, catalog: Catalog, tools: ToolDefs) -> Vote | Objection:
        vote = self._read.get(token)
        if vote is None:
            vote = vote_in(token, catalog)
            if isinstance(vote, Vote):
                ahead = ballot.dated_ahead(vote, self.tokens[token]) if token in self.tokens else None
                large = ballot.oversized(vote, self.message_bytes)
                vote = ahead or large or unfit(self.request, vote, catalog, tools) or vote
            self._read[token] = vote
        return vote

    def count(self, catalog: Catalog, tools: ToolDefs, now: int) -> Count:
        votes = [self.read(token, catalog, tools) for token in self.tokens]
        return ballot.count(self.request, (vote for vote in votes if isinstance(vote, Vote)), catalog.roles, now)

    def tokens_of(self, votes: Iterable[Vote]) -> tuple[str, ...]:
        tokens = {vote: token for token, vote in self._read.items()}
        return tuple(tokens[vote] for vote in votes)

    def make_room(self, count: Count, roles: Roles, limits: ApprovalLimits) -> bool:
        """Drop votes over the limits, uncounted ones first, then the latest; True if there were any."""
        over, over_bytes = len(self.tokens) - limits.votes, sum(map(len, self.tokens)) - limits.votes_bytes
        if over <= 0 and over_bytes <= 0:
            return False
        votes = [vote for vote in self._read.values() if isinstance(vote, Vote) and vote not in count.void]
        last = {vote.actor: vote for vote in sorted(votes, key=ballot.order) if vote.action in ballot.STANCES}
        ranked: tuple[list[str], ...] = ([], [], [])
        for token in self.tokens:
            ranked[_rank(self._read[token], last, count, roles)].append(token)
        for token in [*ranked[0], *ranked[1], *reversed(ranked[2])]:
            if over <= 0 and over_bytes <= 0:
                break
            del self.tokens[token]
            over, over_bytes = over - 1, over_bytes - len(token)
        return True

    def give_up(self, token: str, catalog: Catalog, tools: ToolDefs) -> None:
        if token in self.tokens and isinstance(self.read(token, catalog, tools), Objection):
            del self.tokens[token], self._read[token]

    def waiting_bytes(self) -> int:
        return sum(record_bytes(record) for record, _ in self.fresh)

    def tidy(self) -> None:
        """Forget votes that can form no verdict any more."""
        for token, vote in self._read.items():
            if self.decided or (isinstance(vote, Vote) and vote.action not in KEPT):
                self.tokens.pop(token, None)
        self._read = {token: vote for token, vote in self._read.items() if token in self.tokens}


def _rank(vote: Vote | Objection, last: Mapping[str, Vote], count: Count, roles: Roles) -> int:
    """Rank of a vote if an approval has too many: 0 is dropped first, 2 last; `last` has the stance of each actor."""
    if isinstance(vote, Objection) or vote in count.void or vote.action not in KEPT:
        return 0
    if vote.action in ballot.STANCES and vote != last[vote.actor]:
        return 0
    # Any actor may withdraw. Such a vote is dropped after the one that it withdraws: none withdrawn may remain.
    alien = vote.action == "withdraw" and not roles.entitled(count.approvers, vote.actor, vote.roles)
    return 1 if alien else 2


class OpenByCall(dict[str, set[str]]):
    """Open questions by their call; an honest planner has one at a time."""

    def open(self, request: ApprovalRequest) -> list[str]:
        """Add a question; return the others about the same call."""
        questions = self.setdefault(request.call_id, set())
        others = sorted(questions - {request.approval_id})
        questions.add(request.approval_id)
        return others

    def close(self, approval: str) -> None:
        questions = self.pop(call := asked_about(approval), set())
        if left := questions - {approval}:
            self[call] = left


class PastApprovals(Recent[str, bool]):
    """The latest approvals that are decided, or closed (True)."""

    def decide(self, approval: str) -> None:
        """Note a decision, even before its request is read."""
        if approval not in self:
            self.add(approval, False)

    def close(self, approval: str) -> None:
        self.pop(approval, None)
        self.add(approval, True)


def vote_in(token: str, catalog: Catalog) -> Vote | Objection:
    try:
        return ballot.open_vote(token, catalog.keys)
    except (UnauthorisedError, MalformedError) as error:
        return Objection(error.code, error.message)


def unfit(request: ApprovalRequest, vote: Vote, catalog: Catalog, tools: ToolDefs) -> Objection | None:
    """Reason why the tool of this process, or the policy, refuses an edit or a result in a vote."""
    if vote.action not in ("edit", "answer"):
        return None
    tool = tools.get(request.tool)
    if tool is None:
        return Objection("edit_not_possible", f"the approval service does not know the tool {request.tool}")
    # A doubt may outlive a deployment: its result is for code that runs from now on.
    unchanged = (tool.facts.version, tool.facts.schema) == (request.version, request.schema)
    if not unchanged and request.about != DOUBT:
        return Objection("edit_not_possible", f"the approval service knows another version of the tool {request.tool}")
    if wrong := _unreadable(request, vote, tool):
        return Objection("edit_not_possible", wrong)
    policy = catalog.policies.get(request.policy)
    if vote.action == "edit" and policy is not None:
        denial = policy_check.of_request(policy, request, tool.facts, args=vote.args).denial
        return Objection("edit_denied", denial) if denial else None
    return None


def _unreadable(request: ApprovalRequest, vote: Vote, tool: ToolDef) -> str:
    try:
        if vote.action == "edit":
            tool.arguments.load(vote.args)
            return context_edited(request, vote.args)
        tool.result.load(vote.result)
    except UsageError as error:
        return str(error)
    return ""


def as_judged(
    request: ApprovalRequest, settled: BallotResult, catalog: Catalog, tools: Mapping[str, ToolFacts]
) -> BallotResult:
    """The settled result; an edit that other people would have to decide becomes one without effect."""
    policy, tool = catalog.policies.get(request.policy), tools.get(request.tool)
    if settled.verdict != "edit" or policy is None or tool is None:
        return settled
    return settled if suffices(request, policy, tool, args=settled.edited) else settled._replace(verdict="amend")
