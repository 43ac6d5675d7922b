"""A decision as a capability: what it binds, and whether it allows exactly the call that is about to run.

Who decides signs, who acts checks, and neither takes the word of who carries it from one to the other. Everything that
makes a call itself is bound: another run, tool, version, argument, key or environment is another call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Required, TypedDict, Unpack, get_args

from refold.core.approval.catalog import HANDED_ON, Roles
from refold.core.approval.question import CONTEXT, args_digest, bound, context_digest
from refold.core.errors import MalformedError
from refold.core.events import DOUBT
from refold.core.ids import home, parse_approval_id, parse_call_id
from refold.core.messages import ApprovalRequest, ToolRequest
from refold.core.wire import canonical
from refold.core.wire.canonical import idempotency_key

Verdict = Literal["approve", "edit", "amend", "reject", "answer"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""To `amend` is to edit a call so that its policy asks others: nothing goes out, the call is proposed anew."""

RUN = "run"
"""Scope of a grant. What is wider is a policy."""

AS_ASKED = (
    *("question", "environment", "step", "tool", "version", "schema", "effect"),
    *("attempt", "covers", "policy", "proposal"),
)
"""Fields of a request that a decision has as they are. The question binds them too."""

_SHOWN_AS_EDIT = "edit:"

SKEW_MS = 300_000
"""How far a decision may have been issued in the future of who checks it: clocks of different machines."""


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """What is known of a tool by those who do not run it. `schema` is `schema_name` of its arguments.

    `approval`: it may never run without a decision, whatever a policy says. `claim` is an argument that says a call was
    approved: what has it needs a decision, too.
    """

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
        """True if a call with these arguments, canonical JSON, needs a decision whatever a policy says of it."""
        return self.approval or (bool(self.claim) and f'"{self.claim}":true' in args)


class Cast(NamedTuple):
    """A vote that a decision rests on. `via` is what entitled the actor, `strength` how they proved who they are.

    `via` is an approver of the policy (`ada`, `role:lead`, `*`), or says who handed it on, and which approver that is:
    `handed:["zoe","ada","role:lead"]`.
    """

    actor: str
    via: str
    strength: str
    vote: str
    at_ms: int


class Entitlement(NamedTuple):
    """Somebody who may decide, and which of the approvers they are by that."""

    actor: str
    approver: str


class Grant(NamedTuple):
    """The same call again without asking: in the run that it was given in, until `until_ms`, `uses` times.

    `use` is 0 in the decision that gives it, else which use of it a decision is. `rule` is what asked for it. `scope`
    is `run`: another, and a `session`, are in signed decisions of before, and give nothing any more.
    """

    id: str
    scope: str
    until_ms: int
    uses: int
    use: int
    session: str = ""
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """Signed content. `args` is the digest of the arguments that may be sent, `edited` their text where they are new.

    `result` is the answer in the tool's place, `attempt` and `covers` the attempts that it is good for. `asked` is what
    the question says (`question.bound`), `tokens` are the signed votes that decide it, those that handed it on
    included; the use of a grant has none, but in `given` the decision that gave it, as it was signed.
    """

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
    args: str
    key: str
    attempt: int
    covers: int
    policy: str
    proposal: str
    verdict: Verdict
    edited: str
    result: str
    message: str
    votes: tuple[Cast, ...]
    grant: Grant | None
    issued: int
    expires: int
    nonce: str
    asked: dict[str, Any] = field(default_factory=dict)
    tokens: tuple[str, ...] = ()
    given: str = ""

    def payload(self) -> dict[str, Any]:
        fields = {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}
        fields["votes"] = [vote._asdict() for vote in self.votes]
        fields["grant"] = self.grant._asdict() if self.grant else None
        fields["tokens"] = list(self.tokens)
        return {"kind": "decision", **fields}

    @staticmethod
    def parse(payload: Mapping[str, Any]) -> Decision:
        """The decision in a payload whose signature was good. **Raises** MalformedError for any other shape."""
        fields = signed_fields(Decision, "decision", payload)
        if fields["verdict"] not in VERDICTS:
            raise MalformedError("a field of the decision has another type")
        tokens = fields["tokens"]
        if not isinstance(fields["votes"], list) or not isinstance(fields["asked"], dict):
            raise MalformedError("the decision has no list of votes or no question")
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise MalformedError("the tokens of the decision are not a list of texts")
        fields["tokens"] = tuple(tokens)
        fields["votes"] = tuple(_shaped(Cast, vote) for vote in fields["votes"])
        if fields["grant"] is not None:
            grant = fields["grant"] = _shaped(Grant, fields["grant"])
            if grant.use and parse_approval_id(grant.id)[0] != fields["run"]:
                raise MalformedError("the decision uses a grant of another run, and a grant is for one")
        return Decision(**fields)


def signed_fields(cls: type, kind: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a signed object, of which texts and numbers are checked. **Raises** MalformedError."""
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
    """Digest of a JSON Schema of arguments, and of how they are shown, as requests and decisions name it.

    What people see less of must not rest on a planner's word. Here the executor finds it if it is not so.
    """
    return _SHOWN_AS_EDIT * edit + sha256(schema.encode()).hexdigest()


def shown_as_edit(request: ApprovalRequest) -> bool:
    """True if the tool has declared that of its texts `before` and `after` the difference is enough to see."""
    return request.schema.startswith(_SHOWN_AS_EDIT)


class Content(TypedDict, total=False):
    """Decision of people, see `Decision`. `edited` and `result` are canonical JSON that the tool accepts."""

    votes: Required[tuple[Cast, ...]]
    edited: str
    result: str
    message: str
    grant: Grant | None
    tokens: tuple[str, ...]
    given: str


_NOTHING_MORE: dict[str, Any] = {"edited": "", "result": "", "message": "", "grant": None}


def build(
    request: ApprovalRequest, verdict: Verdict, *, issued_ms: int, nonce: str, **content: Unpack[Content]
) -> Decision:
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
        args=args_digest(args),
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
    """Why a call may not be acted upon. `stale`: it was allowed once; with a new decision it may go on."""

    code: str
    message: str
    stale: bool


def refusal(
    decision: Decision, request: ToolRequest, tool: ToolFacts, *, environment: str, now_ms: int
) -> Refusal | None:
    """Why a decision does not allow the call that these very bytes order; None if it does.

    **Units**: `now_ms` is the wall clock of who acts; the log's own time of the order counts besides it, so that a
    clock that is behind does not make a decision last longer.
    """
    if decision.verdict not in ("approve", "edit"):
        return _final(f"the decision says {decision.verdict}")
    # Else an order could name a policy that is in force, and the one that people decided under would go unnoticed.
    if decision.policy != request.policy:
        return _final("the decision is for another policy")
    if elsewhere := _elsewhere(decision, request, tool, environment, about=""):
        return elsewhere
    if not decision.attempt <= request.attempt <= decision.covers:
        return _final(f"the decision is for attempts {decision.attempt} to {decision.covers}, not {request.attempt}")
    if tool.effect == "once" and decision.attempt != decision.covers:
        # Whoever asked may have asked for more, and nothing else keeps the attempts of such a call apart.
        return _final("the decision is for several attempts of a call that is sent once")
    now = max(now_ms, request.at_ms)
    if decision.issued > now + SKEW_MS:
        return _final("the decision was issued in the future")
    if decision.version != tool.version:  # it was deployed anew in between: people look at the call again
        return Refusal("tool_changed", "the decision is for another version of the tool", stale=True)
    if decision.schema != tool.schema:
        return Refusal("tool_changed", "the decision is for another schema of the tool", stale=True)
    if now >= decision.expires:
        return Refusal("decision_expired", "the decision has expired", stale=True)
    return None


def unsettled(
    decision: Decision, request: ToolRequest, tool: ToolFacts, *, environment: str, begun: tuple[int, int]
) -> Refusal | None:
    """Why a decision does not say that nothing came of the attempts before the one that is ordered; None if it does.

    `begun` is the highest attempt that somebody may have acted on, and since when by the log: people must have spoken
    of that one as well, and after it. What has not happened does not happen later, so their word holds for as long as
    nobody begins another.
    """
    highest, since_ms = begun
    if decision.verdict != "approve":
        return _final(f"of the attempts before, the decision says {decision.verdict}")
    if not highest < decision.attempt <= request.attempt:
        return _final(f"the decision is about what came before attempt {decision.attempt}")
    if refused := _elsewhere(decision, request, tool, environment, about=DOUBT):
        return refused
    # Whoever asks may ask before there is anything to find: that nothing came of it is true then, and soon no more.
    if any(vote.at_ms < since_ms for vote in decision.votes):
        return Refusal("in_doubt", "it was said before the attempt that it is about had begun", stale=True)
    return None


def _elsewhere(
    decision: Decision, request: ToolRequest, tool: ToolFacts, environment: str, *, about: str
) -> Refusal | None:
    if decision.asked.get("about", "") != about:
        return _final("the decision answers a question about something else")
    try:
        args = canonical.dumps(canonical.parse(request.args))
        run, _ = parse_call_id(request.call_id)
    except MalformedError as error:
        return _final(error.message)
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
        "arguments": (decision.args, args_digest(args)),
        "context": (decision.asked.get(CONTEXT), context_digest(args)),
        "decided key": (decision.key, key),
        "key": (request.key, key),
    }
    for part, (decided, ordered) in expected.items():
        if decided != ordered:
            return _final(f"the decision is for another {part}")
    if not decision.votes:
        return _final("nobody stands behind the decision")
    return None


def via(lineage: Sequence[Entitlement]) -> str:
    """What entitles the first of a lineage, as a vote of a decision tells it."""
    own, *by = lineage
    return HANDED_ON + canonical.dumps([own.approver, *by[0]]) if by else own.approver


def lineage(cast: Cast) -> tuple[Entitlement, ...]:
    """Whoever cast a vote, and who handed it on to them, if anybody did. **JsonCodec**: empty if it cannot be read."""
    spelt = cast.via.removeprefix(HANDED_ON)
    if spelt == cast.via:
        return (Entitlement(cast.actor, spelt),)
    try:
        names = canonical.parse(spelt)
    except MalformedError:
        return ()
    if not isinstance(names, list) or len(names) != 3 or not all(isinstance(name, str) for name in names):
        return ()
    return Entitlement(cast.actor, names[0]), Entitlement(names[1], names[2])


def behind(decision: Decision) -> list[str]:
    """Everybody whose word a decision is: any of them may end the grant that it gives."""
    return sorted({name for vote in decision.votes for entitlement in lineage(vote) for name in entitlement})


def disowned(decision: Decision, roles: Roles) -> Refusal | None:
    """Why the people behind a decision do not carry it any more; None if they do.

    Nobody has more than who handed it on to them: a vote holds as long as both would be entitled.
    """
    for vote in decision.votes:
        for actor, approver in lineage(vote) or (Entitlement(vote.actor, ""),):
            if not roles.still(actor, approver):
                return Refusal("decision_revoked", f"{actor} may not decide any more", stale=True)
    return None


def away(request: ToolRequest, partition: int, partitions: int) -> Refusal | None:
    """A call is claimed in its run's home alone: elsewhere there would be a second claim chain for it."""
    if not request.call_id.startswith(f"{request.run_id}/"):
        return _final("the call is not one of its run")
    if home(request.run_id, partitions) != partition:
        return _final("the call is not at home in this partition")
    return None


def _final(message: str) -> Refusal:
    return Refusal("unauthorised", message, stale=False)
