"""Decisions of people in a bundle, counted again by the executor's functions."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from refold.core import events
from refold.core.approval import decision, signature
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import SKEW_MS, Decision, ToolFacts
from refold.core.approval.policy_check import unasked, unfounded
from refold.core.approval.question import CONTEXT, bound, digest
from refold.core.approval.signature import KeyRing, Trust, platform_of
from refold.core.errors import MalformedError, UnauthorisedError
from refold.core.messages import CatalogEntry, ToolRequest
from refold.core.planning import commands
from refold.core.planning.asking import question_of
from refold.core.run.state import RunState
from refold.core.wire.blobs import is_pointer, parse_pointer
from refold.core.wire.canonical import hex_digest
from refold.lab.evidence.bundle import Hole


class PeopleDecided(NamedTuple):
    """A decision of people in a bundle. `checked`: its signature, votes and quorum are verified."""

    run_id: str
    seq: int
    call_id: str
    tool: str
    verdict: str
    actors: list[str]
    keys: list[str]
    checked: bool


class Authorities:
    """Catalog of a bundle at any time, by entries signed with trusted root keys."""

    def __init__(self, trust: Trust) -> None:
        self.trust, self.platform = trust, platform_of(trust)
        """Platform that the catalog was signed for, by default the first entry's. Entries for others are void."""
        self._entries = list[tuple[CatalogEntry, bytes]]()
        self._whole = Catalog(trust)
        self._by_count = dict[int, Catalog]()

    def add(self, entry: CatalogEntry, key: bytes, value: bytes) -> str:
        """Add the next record; return the reason why it is void, or empty."""
        why = self._whole.follow(self._whole.position, key, value)
        if not why and self.platform and entry.platform != self.platform:
            why = f"it was signed for {entry.platform or 'no platform'}, and this is {self.platform}"
        if not why:
            self._entries.append((entry, value))
            self.platform = entry.platform
        return why

    def withdrawn(self, keys: Iterable[str]) -> list[str]:
        """Return keys that the catalog finally lacks or has revoked: a stolen key can backdate signatures."""
        keyring = self._whole.keys
        return sorted({kid for kid in keys if kid not in keyring or keyring[kid].revoked})

    def catalog_at(self, ms: int) -> Catalog:
        entries = [(entry, value) for entry, value in self._entries if entry.at_ms <= ms]
        if len(entries) not in self._by_count:
            catalog = self._by_count[len(entries)] = Catalog(KeyRing(self.trust, self.platform))
            for entry, value in entries:
                catalog.follow(catalog.position, entry.name.encode(), value)
        return self._by_count[len(entries)]


def text_digest(text: str) -> str:
    """Digest of a value; of a pointer, that of the value behind it."""
    with suppress(MalformedError):  # else it stands for none
        return parse_pointer(text).digest
    return hex_digest(text)


def recounted(before: RunState, event: events.ApprovalDecided, at_ms: int, authorities: Authorities) -> Hole | Decision:
    """Return the decision in an event if people made it on exactly this question, else a hole."""
    outcome = _verified_decision(before, event, authorities.catalog_at(at_ms))
    if isinstance(outcome, Hole):  # the clock of a writer to the catalog may be ahead
        outcome = _verified_decision(before, event, authorities.catalog_at(at_ms + SKEW_MS))
    if isinstance(outcome, Hole):
        return outcome
    call, home = before.call_id(event.step), authorities.platform.partition("/")[0]
    if outcome.issued > at_ms + SKEW_MS:  # a key that was revoked in between could have signed it
        return Hole("decision", 0, f"the decision on {call} was signed after the entry that has it")
    if home not in ("", outcome.environment):
        return Hole("decision", 0, f"the decision on {call} is for {outcome.environment}, and the catalog for {home}")
    return outcome


def _verified_decision(before: RunState, event: events.ApprovalDecided, catalog: Catalog) -> Hole | Decision:
    call = before.call_id(event.step)
    try:
        signed = Decision.parse(signature.verified(event.token, catalog.keys, use="decision"))
    except (UnauthorisedError, MalformedError) as error:
        return Hole("signature", 0, f"the decision on {call} is not signed by a key of the catalog: {error.message}")
    if part := _differing_part(before, event, signed):
        return Hole("decision", 0, f"the decision on {call} has another {part}")
    refused = unfounded(signed, catalog)
    args = event.args or before.call(event.step).args
    if refused is None and signed.verdict in ("approve", "edit") and not is_pointer(args):
        order = commands.request(before, event.step, signed.attempt, issued=0, at_ms=signed.issued).message
        assert isinstance(order, ToolRequest), "it orders the call"
        refused = unasked(signed, replace(order, args=args), catalog, {})
    return Hole("decision", 0, f"people have not decided {call}: {refused.message}") if refused else signed


def not_let_out(order: ToolRequest) -> str:
    """Return the reason why a verified decision does not allow an order, or empty."""
    signed = Decision.parse(signature.content_of(order.decision))
    facts = ToolFacts(order.tool, signed.version, signed.schema, order.effect)
    refused = decision.refusal(signed, order, facts, environment=signed.environment, now_ms=order.at_ms)
    return refused.message if refused and not refused.stale else ""


def _differing_part(before: RunState, event: events.ApprovalDecided, signed: Decision) -> str:
    """First part of an event that differs from its signed decision, or empty."""
    opened, call = before.open.get(event.step), before.call(event.step)
    if opened is None or opened.question is None:
        return "question: people were asked nothing"
    question, unseen = bound(question_of(before, call, opened)), dict[str, object]()
    if is_pointer(call.args) or is_pointer(event.args):
        unseen = {name: signed.asked.get(name) for name in ("args", "proposed_args", "proposal", CONTEXT)}
    same = {"amend": "edit"}
    parts = {
        "question": ({signed.question, digest(question | unseen), event.question}, {opened.question.question}),
        "call": ((signed.run, signed.call), (before.run_id, before.call_id(event.step))),
        "digest of arguments": (signed.args, text_digest(event.args or call.args)),
        "key": (signed.key, event.key or call.key),
        "verdict than its event": (same.get(signed.verdict, signed.verdict), same.get(event.verdict, event.verdict)),
        "people than its event": ([vote.actor for vote in signed.votes], event.actors),
        "message than its event": (signed.message, event.message),
    }
    return next((part for part, (decided, recorded) in parts.items() if decided != recorded), "")
