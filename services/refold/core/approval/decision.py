"""Signed decisions as capabilities: facts that a decision binds, and the check that it allows exactly the call about to
run. The approval service signs, the executor verifies, and neither trusts the planner in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Required, TypedDict, Unpack, get_args

from refold.core.approval.catalog import HANDED_ON, Roles
from refold.core.approval.question import CONTEXT, bound, context_digest
from refold.core.approval.signature import are_texts
from refold.core.errors import MalformedError
from refold.core.events import DOUBT
from refold.core.ids import home, parse_approval_id, parse_call_id
from refold.core.messages import ApprovalRequest, ToolRequest
from refold.core.wire import canonical
from refold.core.wire.canonical import hex_digest, idempotency_key

Verdict = Literal["approve", "edit", "amend", "reject", "answer"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""Verdicts of a decision. `amend` is an edit that other people must approve: the call is judged again."""

RUN = "run"
"""Scope of a grant. A wider permission needs a policy."""

AS_ASKED = (
    *("question", "environment", "step", "tool", "version", "schema", "effect"),
    *("attempt", "covers", "policy", "proposal"),
)
"""Fields that a decision copies from its request."""

_SHOWN_AS_EDIT = "edit:"

_NOTHING_MORE: dict[str, Any] = {"edited": "", "result": "", "message": "", "grant": None}


SKEW_MS = 300_000
"""Tolerated clock difference between signer and verifier."""


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """Facts of a tool for processes that do not run it. `schema` is `schema_name` of its arguments. `approval`: every
    call needs a decision, whatever the policy. `claim`: a call with this argument true needs one, too."""

    name: str
    version: str
    schema: str
    effect: str
    tags: tuple[str, ...] = ()
    approval: bool = False
    key_window_ms: int = 0
    pool: str = "default"
    claim: str = ""

    def asks(self, args: str) -> bool:
        """True if a call with these arguments (canonical JSON) needs a decision whatever the policy."""
        return self.approval or (bool(self.claim) and f'"{self.claim}":true' in args)


class Cast(NamedTuple):
    """Vote behind a decision. `strength` is the method of authentication. `via` is the matched approver (`ada`,
    `role:lead`, `*`), or for a deputy its own approver, the delegator and the delegator's approver:
    `handed:["zoe","ada","role:lead"]`."""

    actor: str
    via: str
    strength: str
    vote: str
    at_ms: int


class Entitlement(NamedTuple):
    """Person and the approver (`ada`, `role:lead`, `*`) that the person matches."""

    actor: str
    approver: str


class Grant(NamedTuple):
    """Permission to repeat a call of the same run without a question. `session`, and another `scope` than `run`, occur
    in decisions of earlier releases, without effect."""

    id: str
    scope: str
    until_ms: int
    uses: int
    use: int  # 0 in the decision that gives the grant, else the number of the use
    session: str = ""
    rule: str = ""  # the rule that required the decision


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision on a call by a question and its votes, before or after signing."""

    approval: str
    question: str
    environment: str
    run: str
    call: str
    step: int
    tool: str
    version: str
    schema: str
    effect: str
    args: str  # digest of the permitted arguments
    key: str
    attempt: int  # first permitted attempt
    covers: int  # last permitted attempt
    policy: str
    proposal: str
    verdict: Verdict
    edited: str  # text of new arguments
    result: str  # answer in the tool's place
    message: str
    votes: tuple[Cast, ...]
    grant: Grant | None
    issued: int
    expires: int
    nonce: str
    asked: dict[str, Any] = field(default_factory=dict)  # content of the question, see `question.bound`
    tokens: tuple[str, ...] = ()  # deciding signed votes with their delegations; none for the use of a grant
    given: str = ""  # signed decision that gave the used grant

    def payload(self) -> dict[str, Any]:
        fields = {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}
        fields["votes"] = [vote._asdict() for vote in self.votes]
        fields["grant"] = self.grant._asdict() if self.grant else None
        fields["tokens"] = list(self.tokens)
        return {"kind": "decision", **fields}

    @staticmethod
    def parse(payload: Mapping[str, Any]) -> Decision:
        """Decision in a verified payload. **Raises** MalformedError for another shape."""
        fields = signed_fields(Decision, "decision", payload)
        if fields["verdict"] not in VERDICTS:
            raise MalformedError("a field of the decision has another type")
        tokens = fields["tokens"]
        if not isinstance(fields["votes"], list) or not isinstance(fields["asked"], dict):
            raise MalformedError("the decision has no list of votes or no question")
        if not are_texts(tokens):
            raise MalformedError("the tokens of the decision are not a list of texts")
        fields["tokens"] = tuple(tokens)
        fields["votes"] = tuple(_shaped(Cast, vote) for vote in fields["votes"])
        if fields["grant"] is not None:
            grant = fields["grant"] = _shaped(Grant, fields["grant"])
            if grant.use and parse_approval_id(grant.id)[0] != fields["run"]:
                raise MalformedError("the decision uses a grant of another run, and a grant is for one")
        return Decision(**fields)


def signed_fields(cls: type, kind: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a signed object, with texts and numbers type-checked. **Raises** MalformedError."""
    hints = cls.__annotations__
    if payload.keys() != {"kind", *hints} or payload["kind"] != kind:
        raise MalformedError(f"the token is not a {kind}")
    plain = {"str": str, "int": int}
    if any(type(payload[name]) is not plain[hint] for name, hint in hints.items() if hint in plain):
        raise MalformedError(f"a field of the {kind} has another type")
    return {name: payload[name] for name in hints}


def _shaped(cls: Any, value: Any) -> Any:
    hints = cls.__annotations__
    if not isinstance(value, dict) or value.keys() != hints.keys():
        raise MalformedError(f"the decision holds something else than a {cls.__name__.lower()}")
    if not all(type(value[name]) is (int if "int" in str(hint) else str) for name, hint in hints.items()):
        raise MalformedError(f"a {cls.__name__.lower()} of the decision has a field of another type")
    return cls(**value)


def schema_name(schema: str, *, edit: bool) -> str:
    """Digest of a tool's JSON Schema of arguments and of their display."""
    # By this digest the executor detects a planner that shows people less than the tool declares.
    return _SHOWN_AS_EDIT * edit + hex_digest(schema)


def shown_as_edit(request: ApprovalRequest) -> bool:
    """True if the tool declares that the difference of its texts `before` and `after` is enough to show."""
    return request.schema.startswith(_SHOWN_AS_EDIT)


class Content(TypedDict, total=False):
    """Content that people add to a decision, see `Decision`. `edited` and `result` are canonical JSON."""

    votes: Required[tuple[Cast, ...]]
    edited: str
    result: str
    message: str
    grant: Grant | None
    tokens: tuple[str, ...]
    given: str


def build(
    request: ApprovalRequest, verdict: Verdict, *, issued_ms: int, nonce: str, **content: Unpack[Content]
) -> Decision:
    """Decision on a question, not yet signed, valid for the `valid_ms` of its requirement. An edit gets a new key."""
    args, key = request.args, request.key
    if edited := content.get("edited", ""):
        args = edited
        key = idempotency_key(
            environment=request.environment, run=request.run_id, step=request.step, tool=request.tool, args=args
        )
    return Decision(
        approval=request.approval_id,
        run=request.run_id,
        call=request.call_id,
        args=hex_digest(args),
        key=key,
        verdict=verdict,
        issued=issued_ms,
        expires=issued_ms + request.requirement.valid_ms,
        nonce=nonce,
        asked=bound(request),
        **{name: getattr(request, name) for name in AS_ASKED},
        **{**_NOTHING_MORE, **content},
    )


class Refusal(NamedTuple):
    """Reason why a call is not permitted. `stale`: it was permitted before, and a new decision may permit it again."""

    code: str
    message: str
    stale: bool


def refusal(
    decision: Decision, request: ToolRequest, tool: ToolFacts, *, environment: str, now_ms: int
) -> Refusal | None:
    """Refusal of an order unless the decision permits exactly its call. **Units**: `now_ms` of the executor's clock."""
    if decision.verdict not in ("approve", "edit"):
        return final(f"the decision says {decision.verdict}")
    # Else an order could name a policy in force, and hide the policy of the decision.
    if decision.policy != request.policy:
        return final("the decision is for another policy")
    if elsewhere := _elsewhere(decision, request, tool, environment, about=""):
        return elsewhere
    if not decision.attempt <= request.attempt <= decision.covers:
        return final(f"the decision is for attempts {decision.attempt} to {decision.covers}, not {request.attempt}")
    if tool.effect == "once" and decision.attempt != decision.covers:
        # A forged question may cover more attempts, and nothing else keeps those of such a call apart.
        return final("the decision is for several attempts of a call that is sent once")
    # The log's time counts as well, so that a slow clock does not prolong a decision.
    now = max(now_ms, request.at_ms)
    if decision.issued > now + SKEW_MS:
        return final("the decision was issued in the future")
    if decision.version != tool.version:  # redeployed since: people look at the call again
        return Refusal("tool_changed", "the decision is for another version of the tool", stale=True)
    if decision.schema != tool.schema:
        return Refusal("tool_changed", "the decision is for another schema of the tool", stale=True)
    if now >= decision.expires:
        return Refusal("decision_expired", "the decision has expired", stale=True)
    return None


def unsettled(
    decision: Decision, request: ToolRequest, tool: ToolFacts, *, environment: str, begun: tuple[int, int]
) -> Refusal | None:
    """Refusal of an attempt unless the decision proves that earlier attempts had no effect; None if it does. `begun` is
    the highest attempt that may have been acted on, and its start by the log."""
    highest, since_ms = begun
    if decision.verdict != "approve":
        return final(f"of the attempts before, the decision says {decision.verdict}")
    # The finding stays valid until another attempt begins: an effect that has not happened does not happen later.
    if not highest < decision.attempt <= request.attempt:
        return final(f"the decision is about what came before attempt {decision.attempt}")
    if refused := _elsewhere(decision, request, tool, environment, about=DOUBT):
        return refused
    # A question may be asked before the attempt begins: "nothing happened" is true then, and soon false.
    if any(vote.at_ms < since_ms for vote in decision.votes):
        return Refusal("in_doubt", "it was said before the attempt that it is about had begun", stale=True)
    return None


def _elsewhere(
    decision: Decision, request: ToolRequest, tool: ToolFacts, environment: str, *, about: str
) -> Refusal | None:
    """Refusal of a decision on another call or subject, else None."""
    if decision.asked.get("about", "") != about:
        return final("the decision answers a question about something else")
    try:
        args = canonical.dumps(canonical.parse(request.args))
        run, _ = parse_call_id(request.call_id)
    except MalformedError as error:
        return final(error.message)
    key = idempotency_key(environment=environment, run=run, step=request.step, tool=tool.name, args=args)
    expected = {
        "environment": (decision.environment, environment),
        "run": (decision.run, run),
        "run id": (run, request.run_id),
        "call": (decision.call, request.call_id),
        "step": (decision.step, request.step),
        "tool": (decision.tool, tool.name),
        "tool's name": (request.tool, tool.name),
        "effect class": (decision.effect, tool.effect),
        "class": (request.effect, tool.effect),
        "arguments' text": (args, request.args),
        "arguments": (decision.args, hex_digest(args)),
        "context": (decision.asked.get(CONTEXT), context_digest(args)),
        "decided key": (decision.key, key),
        "key": (request.key, key),
    }
    for part, (decided, ordered) in expected.items():
        if decided != ordered:
            return final(f"the decision is for another {part}")
    if not decision.votes:
        return final("nobody stands behind the decision")
    return None


def via(lineage: Sequence[Entitlement]) -> str:
    """Entitlement of the first of a lineage, in the form of `Cast.via`."""
    own, *by = lineage
    return HANDED_ON + canonical.dumps([own.approver, *by[0]]) if by else own.approver


def lineage(cast: Cast) -> tuple[Entitlement, ...]:
    """Voter and, for a deputy, the delegator; empty if it cannot be parsed."""
    spelt = cast.via.removeprefix(HANDED_ON)
    if spelt == cast.via:
        return (Entitlement(cast.actor, spelt),)
    try:
        names = canonical.parse(spelt)
    except MalformedError:
        return ()
    if not are_texts(names) or len(names) != 3:
        return ()
    return Entitlement(cast.actor, names[0]), Entitlement(names[1], names[2])


def behind(decision: Decision) -> list[str]:
    """Names of people and approvers whose rights a decision needs."""
    # Each of them may end the grant that the decision gives.
    return sorted({name for vote in decision.votes for entitlement in lineage(vote) for name in entitlement})


def disowned(decision: Decision, roles: Roles) -> Refusal | None:
    """Refusal of a decision whose people have lost their entitlement; None if they have not."""
    for vote in decision.votes:
        # A deputy has no more rights than the delegator: both must still be entitled.
        for actor, approver in lineage(vote) or (Entitlement(vote.actor, ""),):
            if not roles.still(actor, approver):
                return revoked(f"{actor} may not decide any more")
    return None


def away(request: ToolRequest, partition: int, partitions: int) -> Refusal | None:
    """Refusal of a call outside its run's home partition."""
    if not request.call_id.startswith(f"{request.run_id}/"):
        return final("the call is not one of its run")
    # In another partition the call would have a second claim chain.
    if home(request.run_id, partitions) != partition:
        return final("the call is not at home in this partition")
    return None


def final(message: str) -> Refusal:
    """Refusal of a call that was never permitted: the planner does not judge it again."""
    return Refusal("unauthorised", message, stale=False)


def revoked(message: str) -> Refusal:
    """Refusal of a call whose permission has ended since: the planner judges it again."""
    return Refusal("decision_revoked", message, stale=True)
