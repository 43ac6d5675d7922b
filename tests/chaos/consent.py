"""The verdict on approvals: nothing dangerous without people's agreement to exactly that, and no agreement but theirs.

Signatures are checked with the bare key, and what people meant is known from themselves, so that neither
`core.capability` nor `core.ballot` judges its own work.
"""

from __future__ import annotations

import json
import math
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.chaos import raw
from tests.chaos.people import ANSWERED, EDITED, Said
from tests.chaos.raw import Chain, Fields, History, Raw
from tests.chaos.rules import GRACE_MS, REQUESTER, Decree

YES = ("approve", "edit")
LAPSED = ("decision_expired", "decision_revoked", "policy_changed", "tool_changed")
"""Why an executor sends a call back that people had agreed to."""

SAME = ("run_id", "tool", "version", "args", "policy", "rule")
"""What makes one question the same as another, for those who want to be asked only once."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """An accepted decision on a call, or its expiry. `amount` is what may be sent from then on.

    `actors` are whose word it is, `quorum` and `policy` what had asked for how many of them.
    """

    at_ms: int
    verdict: str
    amount: int
    actors: frozenset[str]
    quorum: int
    policy: str


@dataclass(slots=True)
class Papers:
    """What there is about approvals.

    `said` are votes by id, as they were meant, `key` is the decisions' public key, `decrees` are in order of time.
    """

    asked: list[Raw] = field(default_factory=list)
    decided: list[Raw] = field(default_factory=list)
    said: Mapping[str, Said] = field(default_factory=dict)
    key: bytes = b""
    decrees: Sequence[Decree] = ()


def rulings_of(history: History) -> dict[int, list[Ruling]]:
    """The rulings on the calls of a run, by step, in order."""
    found: dict[int, list[Ruling]] = {}
    amounts: dict[int, int] = {}
    asked: dict[int, Fields] = {}
    for (name, fields), at_ms in zip(history.events, history.times, strict=True):
        step = fields.get("step", 0)
        if name == "CallProposed":
            amounts[step] = json.loads(fields["args"]).get("amount", 0)
        elif name == "ApprovalRequested":
            asked[step] = fields
        elif name == "ApprovalDecided" and asked[step]["about"] != "doubt":  # that lets nothing out by itself
            if fields["verdict"] in ("edit", "amend"):
                amounts[step] = json.loads(fields["args"])["amount"]
            actors = frozenset(vote["actor"] for vote in payload(fields["token"]).get("votes", ()))
            quorum, policy = asked[step]["requirement"]["quorum"], asked[step]["policy"]
            ruling = Ruling(at_ms, fields["verdict"], amounts[step], actors, quorum, policy)
            found.setdefault(step, []).append(ruling)
    return found


def objection(line: Fields, rulings: list[Ruling], decrees: Sequence[Decree], *, over_ms: int | None) -> str:
    """Why a dangerous effect may not have happened; nothing if it may. `over_ms` is when its run was cancelled."""
    arrived = line["at"] * 1000
    begun = arrived - line["waited_ms"]
    before = [ruling for ruling in rulings if ruling.at_ms <= arrived]
    if not any(ruling.verdict in YES for ruling in before):
        return "had its effect before anybody had agreed to it"
    last = before[-1]
    recent = [ruling for ruling, later in pairwise(before) if begun <= later.at_ms + GRACE_MS] + [last]
    allowing = [ruling for ruling in recent if ruling.verdict in YES]
    if not allowing:
        return f"began {begun - last.at_ms:.0f} ms after it had come to {last.verdict}"
    if line["amount"] not in {ruling.amount for ruling in allowing}:
        return f"was sent with the amount {line['amount']}, which nobody had agreed to"
    if over_ms is not None and begun > over_ms + GRACE_MS:
        return f"began {begun - over_ms:.0f} ms after its run was cancelled"
    lapses = [lapse(ruling, decrees, begun) for ruling in allowing]
    return f"began though {lapses[-1]}" if all(lapses) else ""


def in_force(decrees: Sequence[Decree], kind: str, at_ms: float) -> str:
    """What has been decreed for so long that everybody has to go by it; nothing while that is changing."""
    begun = [decree for decree in decrees if decree.kind == kind and decree.begun_ms <= at_ms]
    return begun[-1].what if begun and begun[-1].done_ms + GRACE_MS < at_ms else ""


def under_a_decree(line: Fields, decrees: Sequence[Decree]) -> bool:
    """Whether an effect began while anything was in force: how often it could have shown that nobody goes by it."""
    begun = line["at"] * 1000 - line["waited_ms"]
    return any(in_force(decrees, kind, begun) for kind in ("roles", "current"))


def lapse(ruling: Ruling, decrees: Sequence[Decree], at_ms: float) -> str:
    """Why a decision that was good once does not hold any more; nothing if it does."""
    gone, policy = in_force(decrees, "roles", at_ms), in_force(decrees, "current", at_ms)
    if len(ruling.actors - {gone}) < ruling.quorum:
        return f"{gone} might not decide any more"
    if policy and ruling.policy != policy:
        return "the policy in force had not judged it"
    return ""


def may_be_gone(decrees: Sequence[Decree], actor: str, at_ms: float) -> bool:
    """Whether somebody may have taken a person for one who may not decide at the moment."""
    roles = [decree for decree in decrees if decree.kind == "roles"]
    ends = [decree.done_ms + GRACE_MS for decree in roles[1:]] + [math.inf]
    spans = zip(roles, ends, strict=False)
    return any(decree.what == actor and decree.begun_ms <= at_ms <= end for decree, end in spans)


def opened(token: str, key: bytes) -> dict[str, Any] | None:
    """The payload of a token that this key has signed."""
    try:
        signed, _, signature = token.rpartition(".")
        Ed25519PublicKey.from_public_bytes(key).verify(_bytes(signature), signed.encode())
    except (InvalidSignature, ValueError):
        return None
    return payload(token)


def payload(token: str) -> dict[str, Any]:
    """What a token says, whoever has signed it; nothing in no token."""
    found: dict[str, Any] = json.loads(_bytes(token.split(".")[1])) if token else {}
    return found


def check(papers: Papers, chain: Chain) -> tuple[list[str], Counter[str]]:
    """What is wrong with requests and decisions, and what was counted."""
    problems: list[str] = []
    counts: Counter[str] = Counter()
    asked, still = _asked(papers)
    problems += [f"approval {name} is closed, and people are still asked" for name in still]
    tokens: dict[str, set[str]] = {}
    # But for those that ask the time.
    decided = [(raw.decode(record.value), record.at_ms) for record in papers.decided if record.value]
    decisions = [(found, appended_ms) for found, appended_ms in decided if found["kind"] == "decision"]
    for found, appended_ms in decisions:
        tokens.setdefault(found["approval_id"], set()).add(found["token"])
        if problem := _unfounded(found, asked, papers, appended_ms):
            problems.append(f"the decision of {found['approval_id']} {problem}")
    counts["decisions"] = len(decisions)
    counts["questions_closed_again"] = len(decided) - len(decisions)
    counts["decisions_raced"] = sum(len(found) - 1 for found in tokens.values())
    for kind, name in (("roles", "revocations"), ("current", "rechecks")):
        counts[name] = sum(decree.kind == kind and bool(decree.what) for decree in papers.decrees)
    for history in chain.runs.values():
        problems += _accepted(history, tokens, counts)
        problems += _outdated(history, papers.decrees)
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


def _unfounded(record: Fields, asked: Mapping[str, Fields], papers: Papers, appended_ms: float) -> str:
    """Why a decision does not rest on what people have said of its question, or of the same one before.

    Its `issued` is the log's time, which stands still while the broker is silent: what is decreed when it is appended
    may have been read before it was made.
    """
    found, ask = opened(record["token"], papers.key), asked.get(record["approval_id"])
    if found is None:
        return "has no good signature"
    if ask is None or found["question"] != ask["question"]:
        return "answers what nobody has asked"
    grant = found["grant"]
    source = grant["id"] if grant else found["approval"]
    actors = {vote["actor"] for vote in found["votes"]}
    needed = 1 if found["verdict"] == "reject" else ask["requirement"]["quorum"]
    if len(actors) < needed or len(actors) != len(found["votes"]):
        return f"rests on {sorted(actors)}, {needed} are needed"
    if REQUESTER in actors:
        return "rests on the requester"
    gone = [in_force(papers.decrees, "roles", at_ms) for at_ms in (found["issued"], appended_ms)]
    if all(len(actors - {name}) < needed for name in gone):
        return f"rests on {gone[0]}, who might not decide any more"
    for vote in found["votes"]:
        meant = papers.said.get(vote["vote"])
        if meant is None or meant.void or (meant.approval, meant.actor) != (source, vote["actor"]):
            return f"rests on the vote {vote['vote']}, which was {meant}"
        if meant.action != {"amend": "edit"}.get(found["verdict"], found["verdict"]):
            return f"says {found['verdict']}, and {meant.actor} has said {meant.action}"
    if found["verdict"] in ("edit", "amend") and json.loads(found["edited"])["amount"] != EDITED:
        return "has other arguments than people have agreed to"
    return _overdrawn(found, asked, papers) if grant else ""


def _overdrawn(found: Fields, asked: Mapping[str, Fields], papers: Papers) -> str:
    """Why a decision gives or uses a grant that people have not given."""
    grant, ask, first = found["grant"], asked[found["approval"]], asked.get(found["grant"]["id"])
    if first is None or any(ask[name] != first[name] for name in SAME) or found["verdict"] != "approve":
        return f"takes {grant['id']} for an agreement to this"
    if (grant["id"] == found["approval"]) != (grant["use"] == 0):
        return "uses its own grant, or gives one in another's name"
    meant = [said for vote in found["votes"] if (said := papers.said[vote["vote"]]).uses]
    if grant["scope"] != "run" or len(meant) < first["requirement"]["quorum"]:
        return "remembers what people have said of one call alone"
    uses, until_ms = min(said.uses for said in meant), min(said.until_ms for said in meant)
    if grant["uses"] > uses or grant["until_ms"] > until_ms:
        return f"remembers more than {uses} uses until {until_ms}, which people have meant"
    if grant["use"] > uses:
        return f"is use {grant['use']} of {uses}"
    if grant["use"] and found["issued"] >= until_ms:
        return f"came {found['issued'] - until_ms} ms after the grant's end"
    return ""


def _accepted(history: History, tokens: Mapping[str, set[str]], counts: Counter[str]) -> list[str]:
    """What runs have taken for decisions, and what became of the question."""
    problems: list[str] = []
    asked: set[int] = set()
    waiting: set[int] = set()
    uses: dict[tuple[str, int], str] = {}
    following = [name for name, _ in history.events[1:]] + [""]
    for (name, fields), after in zip(history.events, following, strict=True):
        if name == "ApprovalRequested":
            counts["approvals"] += 1
            counts["approvals_asked_again"] += fields["step"] in asked
            asked.add(fields["step"])
            waiting.add(fields["step"])
        elif name == "AttemptFailed" and fields["step"] in asked and fields["failure"]["code"] in LAPSED:
            counts[f"held_no_longer.{fields['failure']['code']}"] += 1
        elif name == "CallJudged":
            counts["calls_judged_again"] += 1
        elif name == "ApprovalEscalated":
            counts["approvals_escalated"] += 1
        elif name == "ApprovalDecided":
            waiting.discard(fields["step"])
            counts[f"approvals.{fields['verdict']}"] += 1
            counts["held_no_longer.on_arrival"] += fields["verdict"] == "expire" and after == "ApprovalRequested"
            said = payload(fields["token"])
            # It names the question that it answers, and the run the one that was asked last.
            approval = str(said.get("approval", ""))
            if said and not approval.startswith(f"{history.run}/"):
                problems.append(f"{history.run} has taken the decision on {approval}")
            if grant := said.get("grant"):
                counts["grants_used" if grant["use"] else "grants_given"] += 1
                if (other := uses.setdefault((grant["id"], grant["use"]), approval)) != approval:
                    problems.append(f"{approval} is use {grant['use']} of {grant['id']}, and so is {other}")
            if fields["verdict"] != "expire" and fields["token"] not in tokens.get(approval, ()):
                problems.append(f"{approval} was decided by a token that approval-decided does not have")
    counts["approvals_open_at_the_end_of_a_run"] += len(waiting)
    return problems


def _outdated(history: History, decrees: Sequence[Decree]) -> list[str]:
    """What a run has taken for a decision that did not hold any more when it came. A no always holds."""
    every = [ruling for rulings in rulings_of(history).values() for ruling in rulings]
    lapses = [(ruling, lapse(ruling, decrees, ruling.at_ms)) for ruling in every if ruling.verdict in (*YES, "answer")]
    return [f"{history.run} has taken {ruling} though {why}" for ruling, why in lapses if why]


def answered(rulings: list[Ruling]) -> str:
    """The result that people gave in the tool's place, as JSON; empty if they did not."""
    return str(ANSWERED) if rulings and rulings[-1].verdict == "answer" else ""


def key_of(x: str) -> bytes:
    """The bytes of a public key as the catalog spells it."""
    return _bytes(x)


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
