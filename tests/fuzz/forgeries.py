"""What can be made of a decision and the order that it allows by somebody who wants another call to run."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from refold.core.approval.catalog import Roles, is_person
from refold.core.approval.decision import SKEW_MS, Grant
from refold.core.approval.question import named
from refold.core.approval.requester import signed as signed_by
from refold.core.approval.signature import PublicKey, SigningKey, sign
from refold.core.ids import home
from refold.core.messages import RunRequest, ToolRequest
from refold.core.wire import canonical
from tests.core.decisions import VOTING, made, signed, votes_of
from tests.fuzz.ordering import (
    ARGS,
    BOUND,
    DECISION,
    DENY,
    GONE,
    KEY,
    KEYS,
    NOW,
    OLD,
    OTHER,
    OTHERS,
    PARTITIONS,
    PAYLOAD,
    REQUEST,
    ROLES,
    STRANGER,
    STRANGER_VOTES,
    TOKEN,
    TOOL,
    TOOLS,
    VALID_MS,
    VOTER,
    Attempt,
    World,
    asked,
    holding,
    key_of,
)

ASKER = SigningKey("rita-key", "request", bytes(range(2, 34)))
"""What rita signs her requests with."""


def b64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(payload: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What somebody without the key can make of a payload."""
    text = canonical.dumps(payload).encode()
    head, _, signature = TOKEN.split(".")
    signed = f"{head}.{b64(text)}"
    yield "the old signature", f"{signed}.{signature}"
    yield (
        "another key's signature",
        f"{signed}.{b64(Ed25519PrivateKey.from_private_bytes(OTHER.seed).sign(signed.encode()))}",
    )
    yield "no signature", f"{signed}."
    yield "zeros for a signature", f"{signed}.{b64(bytes(64))}"
    header = {"alg": "none", "kid": KEY.kid, "typ": "refold-decision+jws"}
    yield "no algorithm", f"{b64(canonical.dumps(header).encode())}.{b64(text)}."
    if type(payload["issued"]) is int:
        yield "a key for votes", sign(payload, VOTER)
        yield "a key for votes that says it is for decisions", sign(payload, replace(VOTER, use="decision"))
        yield "a key that nobody knows", sign(payload, STRANGER)
        yield "a revoked key", sign(payload, GONE)
        if payload["issued"] >= NOW:
            yield "a retired key", sign(payload, OLD)


def others(value: Any) -> list[Any]:
    """Other values of the same type."""
    if isinstance(value, str):
        found: list[Any] = [
            "",
            value + "x",
            value[:-1],
            value.upper() + "_",
            value + " ",
            value + "\0",
            "é" + value,
            "*",
        ]
    elif isinstance(value, int):
        found = [0, 1, -1, value + 1, value - 1, value * 2, -value, 2**53 - 1]
    elif isinstance(value, list) and all(isinstance(each, str) for each in value):
        found = [[], value[:1], [*value, "x"], ["x", *value[1:]]]
    elif isinstance(value, dict):
        found = [{}, {**value, "requester": "zoe"}, {**value, "more": 1}]
    elif isinstance(value, list):
        found = [[], value[:1], value + value, [{**value[0], "actor": "eve"}], [{**value[0], "via": "*"}]]
    else:
        found = [DECISION_WITH_GRANT["grant"]]
    return [new for new in found if new != value]


DECISION_WITH_GRANT = replace(DECISION, grant=Grant("g1", "run", NOW + VALID_MS, 3, 0)).payload()


def of_fields() -> Iterator[Attempt]:
    """Every field of the decision changed by whoever carries it."""
    for name, value in PAYLOAD.items():
        for new in others(value):
            for what, token in forged({**PAYLOAD, name: new}):
                yield Attempt(f"{name}={new!r} with {what}", replace(REQUEST, decision=token), World())
    for what, token in forged(PAYLOAD):
        if token != TOKEN:
            yield Attempt(f"unchanged with {what}", replace(REQUEST, decision=token), World())


def of_other_decisions() -> Iterator[Attempt]:
    """What the approval service has signed, but for something else."""
    worse: dict[str, list[Any]] = {
        "attempt": [3, 4, 2**53 - 1],
        "covers": [0, 1, -1],
        "issued": [NOW + SKEW_MS + 1_001, 2**53 - 1],
        "expires": [0, 1, -1, NOW - 1, NOW, NOW + 1_000],
        "verdict": ["reject", "answer"],
    }
    for name in BOUND:
        for new in worse.get(name, others(PAYLOAD[name])):
            token = holding({**PAYLOAD, name: new})
            yield Attempt(f"a decision with {name}={new!r}", replace(REQUEST, decision=token), World())


def of_other_types() -> Iterator[Attempt]:
    """What the approval service would never sign, signed with its key: nothing may be guessed from it."""
    strange: tuple[Any, ...] = (
        None,
        True,
        False,
        0,
        1,
        1.5,
        "",
        "1",
        "approve",
        [],
        {},
        [[]],
        [None],
        {"a": 1},
        ["ann"],
    )
    for name, value in PAYLOAD.items():
        for new in strange:
            same = type(new) is type(value) or (name == "grant" and new is None) or (name == "votes" and new == [])
            if not same and (name != "issued" or type(new) is int):
                yield Attempt(f"{name}={new!r}", replace(REQUEST, decision=holding({**PAYLOAD, name: new})), World())
        less = {key: kept for key, kept in PAYLOAD.items() if key != name}
        if name != "issued":
            yield Attempt(f"no {name}", replace(REQUEST, decision=holding(less)), World())
            yield Attempt(f"{name} twice", replace(REQUEST, decision=holding({**PAYLOAD, name + "2": value})), World())
    vote, grant = PAYLOAD["votes"][0], DECISION_WITH_GRANT["grant"]
    for name, part in (("votes", vote), ("grant", grant)):
        for key in part:
            wrong: tuple[Any, ...] = (None, True, 1.5, [], {})
            shapes = [{**part, key: new} for new in wrong] + [{**part, "more": 1}]
            shapes.append({kept: value for kept, value in part.items() if kept != key})
            for shape in shapes:
                payload = {**PAYLOAD, name: [shape] if name == "votes" else shape}
                yield Attempt(
                    f"{name} with {key} of another type", replace(REQUEST, decision=holding(payload)), World()
                )
    for payload in (
        {"issued": NOW, "verdict": "approve"},
        {"issued": NOW, "approved": True},
        {**PAYLOAD, "kind": "grant"},
    ):
        yield Attempt("another kind of token", replace(REQUEST, decision=holding(payload)), World())


def of_a_hijacked_service() -> Iterator[Attempt]:
    """Whoever has the service's key signs what people have not said."""
    softer = named(replace(asked(), requirement=replace(asked().requirement, quorum=1)))
    alone = made(softer, votes_of(softer, "ann", at=NOW - 10), ROLES, now=NOW)
    eve = votes_of(asked(), "eve", "mallory", at=NOW - 10)
    with_eve = tuple(signed(eve).values())
    for name, found in {
        "no votes": replace(DECISION, tokens=()),
        "one vote": replace(DECISION, tokens=DECISION.tokens[:1]),
        "one vote twice": replace(DECISION, tokens=DECISION.tokens[:1] * 2),
        "votes of others": replace(DECISION, tokens=with_eve),
        "a softer question": alone,
        "a softer question in its place": replace(DECISION, asked=alone.asked),
        "the softer one's votes": replace(DECISION, tokens=alone.tokens),
    }.items():
        yield Attempt(name, replace(REQUEST, decision=holding(found.payload())), World())
    forged_votes = tuple(signed(votes_of(asked(), "ann", "bob", at=NOW), STRANGER_VOTES).values())
    found = replace(DECISION, tokens=forged_votes)
    yield Attempt("votes by a stranger's key", replace(REQUEST, decision=holding(found.payload())), World())
    bound_key = {**KEYS, VOTING.kid: VOTING.public(actors=("ann",))}
    yield Attempt("votes by ann's key alone", REQUEST, World(keys=bound_key))
    for rules in (DENY, OTHERS):
        yield Attempt("a policy that asks otherwise", REQUEST, World(policy=rules))


def of_orders() -> Iterator[Attempt]:
    """A hijacked planner holds a good decision and orders something else with it."""
    for name in ("call_id", "run_id", "step", "tool", "args", "key", "effect", "policy", "decision"):
        for new in others(getattr(REQUEST, name)):
            yield Attempt(f"order with {name}={new!r}", replace(REQUEST, **{name: new}), World())
    for run in ("run-2", "run-1.1", "RUN-1"):
        order = replace(REQUEST, run_id=run)
        yield Attempt(f"order of a call of run-1 for {run}", order, World(partition=home(run, PARTITIONS)))
    for attempt in (-1, 0, 1, 5, 6, 100, 2**53 - 1):
        yield Attempt(f"attempt {attempt}", replace(REQUEST, attempt=attempt), World())
    texts = [
        ARGS.replace("100", amount)
        for amount in ("101", "1000", "1e2", "100.0", "0100", "-100", '"100"', "9007199254740993")
    ]
    texts += [ARGS.replace("ann", name) for name in ("eve", "ann\\u0000", "\\u0061nn", "\\ud800", "Ann", "\u0430nn")]
    texts += [
        ARGS + " ",
        " " + ARGS,
        ARGS.replace(",", ", "),
        ARGS[:-1] + ',"to":"eve"}',
        ARGS[:-1] + ',"x":1}',
        "{}",
        "null",
    ]
    texts += [
        '{"to":"ann","amount":100}',
        '{"amount":1,' + ARGS[1:],
        ARGS.replace("100", "NaN"),
        "[" * 100,
        "\ufeff" + ARGS,
    ]
    runs = ("run-1", "run-2", "run-1.1", "run", "run-11", "Run-1")
    for run in runs:
        for seq, step in ((3, 2), (3, 3), (4, 2), (30, 2), (1, 1)):
            for tool in TOOLS:
                for args in (ARGS, *texts):
                    if (run, seq, step, tool, args) != ("run-1", 3, 2, "pay", ARGS):
                        order = replace(
                            REQUEST, run_id=run, call_id=f"{run}/{seq}", step=step, tool=tool, args=args,
                            key=key_of(run=run, step=step, tool=tool, args=args), effect=TOOLS[tool].effect,
                        )  # fmt: skip
                        yield Attempt(
                            f"{run}/{seq} step {step}: {tool} {args}", order, World(partition=home(run, PARTITIONS))
                        )


def of_worlds() -> Iterator[Attempt]:
    """The right decision and order, elsewhere, later, or where the tool or the people are others by now."""
    for name in ("version", "schema", "effect", "name"):
        for new in others(getattr(TOOL, name)):
            tool = replace(TOOL, **{name: new})
            yield Attempt(f"tool with {name}={new!r}", REQUEST, World(tools={"pay": tool}))
            yield Attempt(
                f"tool {new!r}, also ordered", replace(REQUEST, effect=tool.effect), World(tools={"pay": tool})
            )
    for_pay2 = holding({**PAYLOAD, "tool": "pay2", "key": key_of(tool="pay2")})
    order = replace(REQUEST, key=key_of(tool="pay2"), decision=for_pay2)
    yield Attempt("a tool under another's name", order, World(tools={"pay": TOOLS["pay2"]}))
    for environment in others("prod"):
        yield Attempt(f"in {environment!r}", REQUEST, World(environment=environment))
        key = replace(REQUEST, key=key_of(environment=environment))
        yield Attempt(f"in {environment!r} with its key", key, World(environment=environment))
    for partition in set(range(PARTITIONS)) - {World().partition}:
        yield Attempt(f"in partition {partition}", REQUEST, World(partition=partition))
    for late in (NOW + VALID_MS, NOW + VALID_MS + 1, NOW * 2, 2**53 - 1):
        yield Attempt("late by the wall clock", REQUEST, World(now_ms=late))
        yield Attempt("late by the log's clock alone", replace(REQUEST, at_ms=late), World(now_ms=NOW))
    yield Attempt("before it was issued", replace(REQUEST, at_ms=0), World(now_ms=NOW - SKEW_MS - 1))
    for roles in (
        Roles(ROLES.by_role, frozenset({"ann"})),
        Roles(ROLES.by_role, frozenset({"bob", "eve"})),
        Roles({"lead": frozenset({"ann"})}),
        Roles({"lead": frozenset()}),
    ):
        yield Attempt("of people who may not decide any more", REQUEST, World(roles=roles))
    keys: list[dict[str, PublicKey]] = [{}, {KEY.kid: KEYS[OTHER.kid]}, {**KEYS, KEY.kid: KEY.public(revoked=True)}]
    keys += [{**KEYS, KEY.kid: KEY.public(retired_ms=NOW)}, {**KEYS, KEY.kid: KEY.public(not_before_ms=NOW + 1)}]
    for known in keys:
        yield Attempt("with a key that does not hold", REQUEST, World(keys=known))


def of_requesters() -> Iterator[Attempt]:
    """A question says who has asked for the run; two people are enough only where a key vouches for that."""
    said = RunRequest("run-1", "payer", "null", "rita")
    known = World(roles=replace(ROLES, askers={ASKER.kid: ASKER.public(actors=("rita",))}))
    token = signed_by(said, ASKER, NOW).token
    tokens = {"none": "", "a stranger's": signed_by(said, replace(STRANGER, use="request"), NOW).token}
    tokens["of a key with the same name"] = signed_by(said, replace(ASKER, seed=bytes(32)), NOW).token
    tokens["a vote key's"] = sign({"run": "run-1", "agent": "payer", "requester": "rita", "issued": NOW}, VOTING)
    for name in ("run_id", "agent", "requester"):
        for new in others(getattr(said, name)):
            tokens[f"with {name}={new!r}"] = signed_by(replace(said, **{name: new}), ASKER, NOW).token
    for index in range(0, len(token), 3):
        tokens[f"bit of character {index}"] = token[:index] + chr(ord(token[index]) ^ 1) + token[index + 1 :]
    for what, made_up in tokens.items():
        yield Attempt(f"a token {what}", by_two(requester="rita", token=made_up), known)
    for name in filter(is_person, others("rita")):
        yield Attempt(f"rita's token for {name!r}", by_two(requester=name, token=token), known)
    for more in ({"revoked": True}, {"retired_ms": NOW}, {"not_before_ms": NOW + 1}, {"actors": ("zoe",)}):
        askers = {ASKER.kid: ASKER.public(**more)}
        world = World(roles=replace(ROLES, askers=askers))
        yield Attempt(f"rita's token and a key with {more}", by_two(requester="rita", token=token), world)


def by_two(**changes: str) -> ToolRequest:
    """An order with what two people have really decided, who were shown this."""
    question = asked(**changes)
    found = made(question, votes_of(question, "ann", "bob", at=NOW - 10), ROLES, now=NOW)
    return replace(REQUEST, decision=holding(found.payload()))


def of_bits() -> Iterator[Attempt]:
    """Bits of every character of the token's text, and of every byte that its parts say."""
    for index in range(len(TOKEN)):
        for bit in (index % 8, (index + 5) % 8):
            token = TOKEN[:index] + chr(ord(TOKEN[index]) ^ 1 << bit) + TOKEN[index + 1 :]
            yield Attempt(f"bit {bit} of character {index}", replace(REQUEST, decision=token), World())
    parts = TOKEN.split(".")
    for number, part in enumerate(parts):
        data = urlsafe_b64decode(part + "==")
        for index in range(0, len(data) * 8, 3):
            flipped = bytearray(data)
            flipped[index // 8] ^= 1 << index % 8
            token = ".".join([*parts[:number], b64(bytes(flipped)), *parts[number + 1 :]])
            yield Attempt(f"bit {index} of part {number}", replace(REQUEST, decision=token), World())


FAMILIES: tuple[Callable[[], Iterator[Attempt]], ...] = (
    of_fields,
    of_other_decisions,
    of_other_types,
    of_a_hijacked_service,
    of_orders,
    of_worlds,
    of_requesters,
    of_bits,
)
