"""The verdict on approvals: nothing dangerous without people's agreement to exactly that, and no agreement but theirs.

Signatures are checked with the bare key, and what people meant is known from themselves, so that neither
`core.capability` nor `core.ballot` judges its own work.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.chaos import raw
from tests.chaos.people import ANSWERED, EDITED, Said
from tests.chaos.raw import Chain, Fields, History, Raw
from tests.chaos.rules import REQUESTER

GRACE_MS = 12_000
"""How long after a no, or after the end of a run, an effect may still begin that was under way: a process is held for
up to 10 s, and what it had claimed before is past recall."""

YES = ("approve", "edit")


@dataclass(frozen=True, slots=True)
class Ruling:
    """An accepted decision on a call, or its expiry. `amount` is what may be sent from then on."""

    at_ms: int
    verdict: str
    amount: int
    token: str


@dataclass(slots=True)
class Papers:
    """What there is about approvals. `said` are votes by id, as they were meant, `key` the decisions' public key."""

    asked: list[Raw] = field(default_factory=list)
    decided: list[Raw] = field(default_factory=list)
    said: Mapping[str, Said] = field(default_factory=dict)
    key: bytes = b""


def rulings_of(history: History) -> dict[int, list[Ruling]]:
    """The rulings on the calls of a run, by step, in order."""
    found: dict[int, list[Ruling]] = {}
    amounts: dict[int, int] = {}
    for (name, fields), at_ms in zip(history.events, history.times, strict=True):
        step = fields.get("step", 0)
        if name == "CallProposed":
            amounts[step] = json.loads(fields["args"]).get("amount", 0)
        elif name == "ApprovalDecided":
            if fields["verdict"] == "edit":
                amounts[step] = json.loads(fields["args"])["amount"]
            ruling = Ruling(at_ms, fields["verdict"], amounts[step], fields["token"])
            found.setdefault(step, []).append(ruling)
    return found


def objection(line: Fields, rulings: list[Ruling], over_ms: int | None) -> str:
    """Why a dangerous effect may not have happened; nothing if it may. `over_ms` is when its run was cancelled."""
    arrived = line["at"] * 1000
    begun = arrived - line["waited_ms"]
    before = [ruling for ruling in rulings if ruling.at_ms <= arrived]
    allowing = [ruling for ruling in before if ruling.verdict in YES]
    if not allowing:
        return "had its effect before anybody had agreed to it"
    if line["amount"] not in {ruling.amount for ruling in allowing}:
        return f"was sent with the amount {line['amount']}, which nobody had agreed to"
    last = before[-1]
    if last.verdict not in YES and begun > last.at_ms + GRACE_MS:
        return f"began {begun - last.at_ms:.0f} ms after it had come to {last.verdict}"
    if over_ms is not None and begun > over_ms + GRACE_MS:
        return f"began {begun - over_ms:.0f} ms after its run was cancelled"
    return ""


def opened(token: str, key: bytes) -> dict[str, Any] | None:
    """The payload of a token that this key has signed."""
    try:
        signed, _, signature = token.rpartition(".")
        Ed25519PublicKey.from_public_bytes(key).verify(_bytes(signature), signed.encode())
        found: dict[str, Any] = json.loads(_bytes(signed.partition(".")[2]))
    except (InvalidSignature, ValueError):
        return None
    return found


def check(papers: Papers, chain: Chain) -> tuple[list[str], Counter[str]]:
    """What is wrong with requests and decisions, and what was counted."""
    problems: list[str] = []
    counts: Counter[str] = Counter()
    asked, still = _asked(papers)
    problems += [f"approval {name} is closed, and people are still asked" for name in still]
    tokens: dict[str, set[str]] = {}
    for record in papers.decided:
        found = raw.decode(record.value or b"")
        tokens.setdefault(found["approval_id"], set()).add(found["token"])
        if problem := _unfounded(found["token"], asked.get(found["approval_id"]), papers):
            problems.append(f"the decision of {found['approval_id']} {problem}")
    counts["decisions"] = len(papers.decided)
    counts["decisions_raced"] = sum(len(found) - 1 for found in tokens.values())
    for history in chain.runs.values():
        problems += _accepted(history, tokens, counts)
    counts["decisions_not_used"] = len(tokens) - sum(counts[f"approvals.{v}"] for v in (*YES, "reject", "answer"))
    return problems, counts


def _asked(papers: Papers) -> tuple[dict[str, Fields], list[str]]:
    """The requests by id, and those which are not closed."""
    found: dict[str, Fields] = {}
    still: dict[str, bool] = {}
    for record in papers.asked:
        name = record.key.decode()
        still[name] = record.value is not None
        if record.value is not None:
            found[name] = raw.decode(record.value)
    return found, [name for name, is_open in still.items() if is_open]


def _unfounded(token: str, ask: Fields | None, papers: Papers) -> str:
    """Why a decision does not rest on what people have said of its question."""
    found = opened(token, papers.key)
    if found is None:
        return "has no good signature"
    if ask is None or found["question"] != ask["question"]:
        return "answers what nobody has asked"
    actors = {vote["actor"] for vote in found["votes"]}
    needed = 1 if found["verdict"] == "reject" else ask["requirement"]["quorum"]
    if len(actors) < needed or len(actors) != len(found["votes"]):
        return f"rests on {sorted(actors)}, {needed} are needed"
    if REQUESTER in actors:
        return "rests on the requester"
    for vote in found["votes"]:
        meant = papers.said.get(vote["vote"])
        if meant is None or meant.void or (meant.approval, meant.actor) != (found["approval"], vote["actor"]):
            return f"rests on the vote {vote['vote']}, which was {meant}"
        if meant.action != found["verdict"]:
            return f"says {found['verdict']}, and {meant.actor} has said {meant.action}"
    if found["verdict"] == "edit" and json.loads(found["edited"])["amount"] != EDITED:
        return "has other arguments than people have agreed to"
    return ""


def _accepted(history: History, tokens: Mapping[str, set[str]], counts: Counter[str]) -> list[str]:
    """What runs have taken for decisions, and what became of the question."""
    problems: list[str] = []
    waiting: set[int] = set()
    for name, fields in history.events:
        if name == "ApprovalRequested":
            counts["approvals"] += 1
            counts["approvals_asked_again"] += fields["attempt"] > 1
            waiting.add(fields["step"])
        elif name == "ApprovalEscalated":
            counts["approvals_escalated"] += 1
        elif name == "ApprovalDecided":
            waiting.discard(fields["step"])
            counts[f"approvals.{fields['verdict']}"] += 1
            approval = f"{history.run}/{fields['approval']}"
            if fields["verdict"] != "expire" and fields["token"] not in tokens.get(approval, ()):
                problems.append(f"{approval} was decided by a token that approval-decided does not have")
    counts["approvals_open_at_the_end_of_a_run"] += len(waiting)
    return problems


def answered(rulings: list[Ruling]) -> str:
    """The result that people gave in the tool's place, as JSON; empty if they did not."""
    return str(ANSWERED) if rulings and rulings[-1].verdict == "answer" else ""


def key_of(x: str) -> bytes:
    """The bytes of a public key as the catalog spells it."""
    return _bytes(x)


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
