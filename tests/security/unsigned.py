"""Attacks without anything that people have signed."""

from __future__ import annotations

import dataclasses
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from refold.core.approval import decision, signature
from refold.core.approval.decision import Cast, Decision
from refold.core.approval.signature import SigningKey
from refold.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallDispatched,
    CallProposed,
    Entry,
    Event,
    RetryPolicy,
    RunRequested,
    RunStarted,
)
from refold.core.ids import NO_ENTRY, home, log_key
from refold.core.messages import ApprovalDecision, ApprovalRequest, ApprovalVote, CatalogEntry, ToolClaim, ToolResult
from refold.core.wire import canonical, codec
from tests.kafka.secured import PARTITIONS
from tests.security.app import DANGEROUS
from tests.security.hijack import Call, Hijack, Outcome, ask_for
from tests.security.plays import Play
from tests.security.stage import ENVIRONMENT, POLICY, PREFIX
from tests.waiting import eventually

OWN = SigningKey("attacker-1", "decision", b"a" * 32)


def plays() -> Iterator[Play]:
    """The attacks."""
    for tool in DANGEROUS:
        effect = Call(tool, "run", "{}").facts.effect
        yield Play(f"order a {effect} tool without a decision", partial(bare, tool=tool))
    yield Play("order it in another pool", lambda h: h.refused(h.call(), pool="model"))
    yield Play("call a once tool pure, without a decision", lambda h: h.refused(h.call(), effect="pure"))
    for what, token in (
        ("a word", "approved"),
        ("a boolean", '{"approved":true}'),
        ("three dots' worth of noise", "e30.e30." + "A" * 86),
    ):
        yield Play(f"for a decision, {what}", partial(with_token, token=token))
    yield Play("for a decision, one without an algorithm", without_algorithm)
    yield Play("a decision signed with a key of one's own", lambda h: h.refused(call := h.call(), forged(call, OWN)))
    yield Play("the same, under the id of the real key", under_the_real_id)
    yield Play("a run log that tells of an approval", written_history)
    yield Play("the tool's name in another spelling", misspelled)
    yield Play("publish a key of one's own", publish_key)
    yield Play("publish other roles", publish_roles)
    yield Play("write a decision", write_decision)
    yield Play("write a vote", write_vote)
    yield Play("write a claim", write_claim)
    yield Play("write a result", write_result)
    yield Play("erase the claim chains", erase_claims)
    yield Play("join the executors", join_executors)


def forged(call: Call, key: SigningKey, *, request: ApprovalRequest | None = None, tokens: tuple[str, ...] = ()) -> str:
    """A decision that holds, but for who signed it and for the votes behind it."""
    now = time.time_ns() // 1_000_000
    votes = (Cast("ada", "role:lead", "key", "approve", now),)
    about, nonce = request or ask_for(call), secrets.token_hex(16)
    found: Decision = decision.build(about, "approve", votes=votes, tokens=tokens, issued_ms=now, nonce=nonce)
    return signature.sign(found.payload(), key)


def bare(hijack: Hijack, *, tool: str) -> Outcome:
    return hijack.refused(hijack.call(tool))


def with_token(hijack: Hijack, *, token: str) -> Outcome:
    return hijack.refused(hijack.call(), token)


def without_algorithm(hijack: Hijack) -> Outcome:
    call = hijack.call()
    header = {"alg": "none", "kid": hijack.stage.service.kid, "typ": "refold-decision+jws"}
    head = urlsafe_b64encode(canonical.dumps(header).encode()).rstrip(b"=").decode()
    return hijack.refused(call, f"{head}.{forged(call, OWN).split('.')[1]}.")


def under_the_real_id(hijack: Hijack) -> Outcome:
    call = hijack.call()
    return hijack.refused(call, forged(call, dataclasses.replace(OWN, kid=hijack.stage.service.kid)))


def misspelled(hijack: Hijack) -> Outcome:
    """An executor leaves what it does not have alone; the order behind it tells that it was passed."""
    call, next_ = hijack.call(), hijack.call()
    hijack.send(hijack.ordering(call, tool="Wipe"))
    behind = hijack.order(next_)
    found = hijack.results(call.id)
    # Left open, it keeps what comes after it from being committed for half a minute, and later plays kill the executor.
    hijack.write("tool-requested.default", home(call.run, PARTITIONS), key=call.id, value=None)
    return Outcome(not found, f"executor: has no such tool, {behind.status} for the call behind it")


def written_history(hijack: Hijack) -> Outcome:
    """Entries that extend the chain: requested, asked, approved by ada and bob, sent."""
    call = hijack.call()
    asked, token, now = ask_for(call), forged(call, OWN), time.time_ns() // 1_000_000
    proposed = CallProposed(1, call.tool, call.args, call.key(), "default", "once", 20_000, RetryPolicy(), rule="one")
    question = ApprovalRequested(
        *(1, 1, 1, POLICY.digest, "one", asked.requirement, ENVIRONMENT), asked.version, asked.schema, asked.question
    )
    decided = ApprovalDecided(1, 4, "approve", token=token, actors=["ada", "bob"], covers=1, expires_ms=now + 60_000)
    entries: list[list[Event]] = [
        [RunRequested("archived_values", "null", "digest", "seed", "rita", policy=POLICY.digest), RunStarted("1")],
        [proposed, question],
        [decided, CallDispatched(1, 1, now + 60_000)],
    ]
    prev, seq, number = NO_ENTRY, 1, home(call.run, PARTITIONS)
    for events in entries:
        entry = Entry(call.run, seq, prev, now, None, "planner-1", secrets.token_bytes(16), events)
        name, value = codec.encode_entry(entry)
        hijack.write("run-log", number, key=log_key(call.run, seq, name).decode(), value=value)
        prev, seq = name, seq + len(events)
    return hijack.refused(call)


# What the broker has to refuse


def publish_key(hijack: Hijack) -> Outcome:
    """And, if the broker let it, use it."""
    entry = CatalogEntry(f"key/{OWN.kid}", "key", canonical.dumps(OWN.public().content()))
    outcome = hijack.forbidden("catalog", key=entry.name, value=codec.encode(entry))
    call = hijack.call()
    used = hijack.refused(call, forged(call, OWN))
    return outcome if used.stopped else used


def publish_roles(hijack: Hijack) -> Outcome:
    entry = CatalogEntry("roles", "roles", '{"roles":{"lead":["eve"]},"revoked":[]}')
    return hijack.forbidden("catalog", key="roles", value=codec.encode(entry))


def write_decision(hijack: Hijack) -> Outcome:
    asked = ask_for(hijack.call())
    message = ApprovalDecision(asked.approval_id, asked.run_id, forged(hijack.call(), OWN))
    return hijack.forbidden("approval-decided", key=asked.approval_id, value=codec.encode(message))


def write_vote(hijack: Hijack) -> Outcome:
    asked = ask_for(hijack.call())
    hijack.ask(asked)
    token = signature.sign({"issued": 1, "kind": "vote"}, SigningKey("attacker-2", "vote", b"v" * 32))
    message = ApprovalVote(asked.approval_id, "v1", asked.run_id, token)
    return hijack.forbidden("approval-voted", key=f"{asked.approval_id}/v1", value=codec.encode(message))


def write_claim(hijack: Hijack) -> Outcome:
    claim = ToolClaim(hijack.call().id, "c1", "", 1, False, "executor-default")
    return hijack.forbidden("tool-claimed.default", key=f"{claim.call_id}/{claim.claim_id}", value=codec.encode(claim))


def write_result(hijack: Hijack) -> Outcome:
    call = hijack.call()
    result = ToolResult(call.id, call.run, 1, 1, "completed", '"done"')
    return hijack.forbidden("tool-completed.default", key=call.id, value=codec.encode(result))


def erase_claims(hijack: Hijack) -> Outcome:
    admin = AdminClient(config(hijack))
    (future,) = admin.delete_records([TopicPartition(f"{PREFIX}tool-claimed.default", 0, -1)]).values()
    try:
        future.result(15)
    except KafkaException as error:
        return Outcome(True, f"broker: {error.args[0].name()}")
    return Outcome(False, "the broker erased them")


def join_executors(hijack: Hijack) -> Outcome:
    consumer = Consumer({**config(hijack), "group.id": f"{PREFIX}refold-executor-default"})
    consumer.subscribe([f"{PREFIX}run-log"])
    try:
        message = eventually(lambda: consumer.poll(0.1), what="an answer to the join")
        error = message.error()
        return Outcome(error is not None, f"broker: {error.name()}" if error else "the broker let it in")
    finally:
        consumer.close()


def config(hijack: Hijack) -> dict[str, Any]:
    """How a client of nobody's making logs in as the planner."""
    return {"bootstrap.servers": hijack.settings.bootstrap, "log_level": 0, **hijack.settings.options}
