"""What was asked, said and decided, read from raw records once more, and what a decision has to rest on."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

from refold.core.approval.decision import ToolFacts
from refold.core.messages import ToolRequest
from refold.core.topics import APPROVAL_REQUESTED, APPROVAL_VOTED, CATALOG
from refold.engine.ports.log import Record
from tests.simulator.app import FACTS
from tests.simulator.reading.logged import LoggedRun, Question
from tests.simulator.reading.tokens import Law, Laws, open_token
from tests.simulator.reading.values import Datum, read_value

_AGAIN = "again/"
_WEEK_MS, _AHEAD_MS = 7 * 86_400_000, 300_000
"""How long a vote counts on a question that never expires, and how far ahead of everybody else it may be dated."""


class ApprovalHistory:
    """Questions, votes and decisions of a case. `open` are those without a tombstone, `wrong` is what may not be."""

    def __init__(self) -> None:
        self.laws = Laws()
        self.asked: dict[str, list[Datum]] = defaultdict(list)
        self.open: dict[str, None] = {}
        self.votes: dict[str, list[str]] = defaultdict(list)
        self.decided: dict[str, list[str]] = defaultdict(list)
        self._decided_ms: dict[str, int] = {}
        self.wrong: list[str] = []
        self._uses: dict[tuple[str, str, int], str] = {}
        self._settled: set[str] = set()
        self._verdict_of: dict[tuple[str, str], str] = {}

    # What is written

    def follow(self, record: Record) -> Datum | None:
        """Takes a record of one of the four topics; gives the question if one is asked. Others say nothing."""
        if record.topic == CATALOG:
            self.laws.follow(record)
            return None
        name = (record.key or b"").decode(errors="replace")
        if record.value is None:
            if record.topic == APPROVAL_REQUESTED:
                self.open.pop(name, None)
            return None
        try:
            content = read_value(record.value)
        except (ValueError, KeyError, IndexError, EOFError):
            return None
        if record.topic == APPROVAL_REQUESTED:
            if name != content["approval_id"]:
                return None
            self.open[name] = None
            if content not in self.asked[name]:
                self.asked[name].append(content)
            return content
        token, known = content["token"], self.votes if record.topic == APPROVAL_VOTED else self.decided
        if not name.startswith(_AGAIN) and token not in known[content["approval_id"]]:
            known[content["approval_id"]].append(token)
            self._decided_ms.setdefault(token, record.at_ms)
        return None

    def begin_anew(self) -> None:
        """Decisions are lost: who has made them reads all there is once more, and decides by that."""
        self._verdict_of.clear()

    def decides(self, process: str, record: Record, before: Iterable[Record]) -> None:
        """A service is about to publish a decision, and this is what it had to know of the same approval before."""
        name = (record.key or b"").decode()
        if record.value is None or name.startswith(_AGAIN):
            return
        token = read_value(record.value)["token"]
        own = self._verdict_of.setdefault((process, name), token)
        law = self.laws.all(record.partition)[-1]
        read = [read_value(other.value)["token"] for other in before if other.value and other.key == record.key]
        for other in (own, *read):
            if other != token and open_token(other, law, "decision"):
                self.wrong.append(f"decided: {process} decides {name} though it knew of a decision")

    # What a decision rests on

    def _payloads(self, tokens: Iterable[str], partition: int, use: str) -> Iterator[Datum]:
        for token in tokens:
            if payload := next((p for law in self.laws.all(partition) if (p := open_token(token, law, use))), None):
                yield payload

    def lacks(self, found: Datum, partition: int) -> str:
        """What is missing behind a decision; nothing when people who might have really said so."""
        grant = found["grant"]
        if grant and grant["use"]:
            given = next((p for p in self._payloads(self.decided[grant["id"]], partition, "decision")), None)
            same = ("run", "tool", "version", "schema", "effect", "args", "environment", "policy", "votes")
            if given is None or any(given[name] != found[name] for name in same) or given["verdict"] != "approve":
                return "a grant for this call, in this run"
            told = given["grant"]
            if not told or told["use"] or grant["use"] > told["uses"] or found["issued"] >= told["until_ms"]:
                return "a grant that lasts as long"
            return self.lacks(given, partition)
        return self._lacks_people(found, partition)

    def _lacks_people(self, found: Datum, partition: int) -> str:
        requests = [each for each in self.asked[found["approval"]] if _digest(each) == found["question"]]
        if not requests or found["approval"] != f"{requests[0]['call_id']}~{found['question'][:32]}":
            return "anybody who asked that question"
        needed, votes = requests[0]["requirement"], found["votes"]
        if not self._vouched(requests[0], partition):
            return "a policy that asks for so little"
        if found["verdict"] == "edit" and not self._asks_of_edits(requests[0], partition):
            return "a policy that asks these people about the edit"
        if found["grant"] and found["grant"]["uses"] > needed["remember_uses"]:
            return "a policy that lets so much be remembered"
        actors = {vote["actor"] for vote in votes}
        if found["verdict"] != "reject" and len(actors) < max(1, needed["quorum"]):
            return "a quorum"
        askers = {requests[0]["requester"], *requests[0]["writers"]} | (actors if found["verdict"] == "edit" else set())
        if needed["not_requester"] and askers & actors:
            return "anybody but those who asked, or wrote the arguments"
        same = ("approval", "question", "environment")
        read = self._payloads(self.votes[found["approval"]], partition, "vote")
        said = [vote for vote in read if all(vote[name] == found[name] for name in same)]
        allowed = {*needed["approvers"], *(needed["escalate_to"] if any(r["level"] for r in requests) else ())}
        for vote in votes:
            if not any(_says(each, vote, found) and _timely(each, requests[0], found) for each in said):
                return f"the vote of {vote['actor']}"
            if not self._entitled(vote["actor"], vote["via"], allowed, said, partition):
                return f"what entitles {vote['actor']}"
        return ""

    def _entitled(self, actor: str, via: str, allowed: set[str], said: list[Datum], partition: int) -> bool:
        for who, name, by in _handed(actor, via):
            words = [v["to"] for v in said if v["actor"] == by and v["action"] in ("delegate", "reassign")]
            if not (any(name in to for to in words) if by else name in allowed):
                return False
            role = name.removeprefix("role:")
            if role == name:
                good = name in ("*", who)
            else:
                claimed = any(role in vote["roles"] for vote in said if vote["actor"] == who)
                people = (law.roles.get(role, [who] if claimed else []) for law in self.laws.all(partition))
                good = any(who in each for each in people)
            if not good:
                return False
        return True

    def _vouched(self, request: Datum, partition: int) -> bool:
        """Whether its policy asks for what the request says; each of these has one rule at most that asks."""
        name, laws = request["policy"], self.laws.all(partition)
        content = next((law.policies[name] for law in laws if name in law.policies), None)
        if content is None and any(law.current for law in laws):
            return False
        asks = [rule["require"] for rule in content["rules"] if "require" in rule] if content else []
        said = request["requirement"]
        if request["about"]:
            asks = [content["doubt"]] if content and "doubt" in content else [{"approvers": []}]
        for wanted in asks or [{"approvers": ["*"]}]:
            escalate_to = wanted.get("escalate", {}).get("to", [])
            least = wanted["approvers"], wanted.get("quorum", 1), wanted.get("not_requester", True), escalate_to
            if (said["approvers"], said["quorum"], said["not_requester"], said["escalate_to"]) == least:
                return True
        return False

    def _asks_of_edits(self, request: Datum, partition: int) -> bool:
        rules = [rule for law in self.laws.all(partition) for rule in _rules(law, request["policy"])]
        wanted = [rule["require"] for rule in rules if rule["name"] == "edited"]
        return not wanted or request["requirement"]["quorum"] == wanted[0]["quorum"]

    # What comes of it

    def accepts(self, run: LoggedRun, question: Question, event: Datum, partition: int) -> None:
        """The log has accepted a decision: it is one that was made, on this question, and it rests on people."""
        name = question.name
        found = next((p for p in self._payloads([event["token"]], partition, "decision")), None)
        if event["token"] not in self.decided[name] or found is None:
            self.wrong.append(f"decided: {name} was accepted with a decision that nobody has made")
            return
        if 0 < question.expires_ms <= self._decided_ms[event["token"]]:
            self.wrong.append(f"late: approval {name} was accepted, and had expired when it was decided")
        bound = (found["approval"], found["question"], _meant(found["verdict"]), found["edited"], found["run"])
        if bound != (name, question.question, _meant(event["verdict"]), event["args"], run.id):
            self.wrong.append(f"decided: {name} was accepted with a decision on something else")
        if any(request["requester"] != run.requester for request in self.asked[name]):
            self.wrong.append(f"decided: {name} was asked in somebody else's name")
        if lacking := self.lacks(found, partition):
            self.wrong.append(f"decided: {name} was accepted as {event['verdict']} without {lacking}")
        if event["use"] and self._uses.setdefault((event["grant"], run.id, event["use"]), name) != name:
            self.wrong.append(f"grant: use {event['use']} of {event['grant']} in run {run.id} was accepted twice")

    def begins(self, ask: ToolRequest, *, partition: int, law: Law | None, now_ms: int) -> None:
        """A tool begins: is there a decision for exactly this call, by what its process has read of the catalog?

        `law` is None where nobody knows what it had read. **Units**: `now_ms` is the process's own clock.
        """
        tool = FACTS.get(ask.tool)
        if tool is None or not tool.approval:
            return
        laws = [law] if law else self.laws.all(partition)
        found = next((p for each in laws if (p := open_token(ask.decision, each, "decision"))), None)
        if found is None:
            self.wrong.append(f"danger: {ask.call_id} begins without a decision that was signed by a key in force")
            return
        for problem in _unbound(found, ask, tool):
            self.wrong.append(f"danger: {ask.call_id} attempt {ask.attempt} begins, and its decision is for {problem}")
        if max(now_ms, ask.at_ms) >= found["expires"]:
            self.wrong.append(f"danger: {ask.call_id} begins after its decision has expired")
        if lacking := self.lacks(found, partition):
            self.wrong.append(f"danger: {ask.call_id} begins without {lacking}")
        if law and (actor := next(_disowned(found, law), "")):
            self.wrong.append(f"danger: {ask.call_id} begins, and {actor} may not decide any more")
        if law and law.current != ask.policy and law.policies.get(law.current, {}).get("recheck"):
            self.wrong.append(f"danger: {ask.call_id} begins, and the policy in force has not judged it")

    def repeats(self, ask: ToolRequest, *, partition: int) -> None:
        """A call that is sent once begins again, and had its effect: people must have said that it had none."""
        found = next(iter(self._payloads([ask.settled], partition, "decision")), None)
        if found is None and ask.attempt == 1 and ask.key in self._settled:
            return  # asked for anew by a retry, and what went out since the word has failed for certain
        self._settled.add(ask.key)
        if found is None:
            self.wrong.append(f"danger: {ask.call_id} begins again, and nobody has said that nothing came of it")
            return
        said = found["asked"].get("about") == "doubt" and found["verdict"] == "approve"
        if not said or (found["call"], found["key"]) != (ask.call_id, ask.key) or found["attempt"] > ask.attempt:
            self.wrong.append(f"danger: {ask.call_id} begins again by a word about something else")
        if lacking := self.lacks(found, partition):
            self.wrong.append(f"danger: {ask.call_id} begins again without {lacking}")


def _rules(law: Law, policy: str) -> list[Datum]:
    rules: list[Datum] = law.policies.get(policy, {"rules": []})["rules"]
    return rules


def _meant(verdict: str) -> str:
    """What people said: whether an edit is a question to others is for the policy to say."""
    return "edit" if verdict == "amend" else verdict


def _says(vote: Datum, cast: Datum, found: Datum) -> bool:
    agrees = vote["action"] == _meant(found["verdict"]) and (vote["args"], vote["result"]) == (
        found["edited"],
        found["result"],
    )
    return agrees and (vote["actor"], vote["vote"], vote["issued"]) == (cast["actor"], cast["vote"], cast["at_ms"])


def _timely(vote: Datum, asked: Datum, found: Datum) -> bool:
    """Whether a vote counted when the decision was made: nobody had to wait for it, and nobody had said it long ago."""
    good_ms, expires_ms = asked["requirement"]["expires_ms"] or _WEEK_MS, asked["expires_ms"]
    late = expires_ms and max(vote["issued"], found["issued"]) >= expires_ms
    return not late and -_AHEAD_MS <= found["issued"] - vote["issued"] < good_ms


def _digest(asked: Datum) -> str:
    """The digest of a question, by its own content."""
    said = {name: value for name, value in asked.items() if name not in ("approval_id", "question", "traceparent")}
    if not said["writers"]:  # as before there were any
        del said["writers"]
    said["context"] = _context(said["args"])
    for name in ("args", "proposed_args"):
        said[name] = sha256(said[name].encode()).hexdigest() if said[name] or name == "args" else ""
    return sha256(json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def _context(args: str) -> str:
    """The digest of what goes with arguments and is none of them."""
    found = json.loads(args)
    context = {name: found[name] for name in found if name.startswith("$")} if isinstance(found, dict) else {}
    text = json.dumps(context, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest() if context else ""


def _unbound(found: Datum, ask: ToolRequest, tool: ToolFacts) -> Iterator[str]:
    run = ask.call_id.partition("/")[0]
    args = json.loads(ask.args)
    text: Any = {"args": args, "environment": "sim", "run": run, "step": ask.step, "tool": ask.tool}
    key = sha256(json.dumps(text, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    pairs = {
        "environment": (found["environment"], "sim"),
        "run": (found["run"], ask.run_id),
        "call": (found["call"], ask.call_id),
        "run of the call": (run, ask.run_id),
        "step": (found["step"], ask.step),
        "tool": (found["tool"], ask.tool),
        "version": (found["version"], tool.version),
        "schema": (found["schema"], tool.schema),
        "class": (found["effect"], tool.effect),
        "ordered class": (ask.effect, tool.effect),
        "arguments": (found["args"], sha256(ask.args.encode()).hexdigest()),
        "context": (found["asked"]["context"], _context(ask.args)),
        "key": (found["key"], key),
        "ordered key": (ask.key, key),
        "policy": (found["policy"], ask.policy),
    }
    yield from (f"another {what}" for what, (one, other) in pairs.items() if one != other)
    if not found["attempt"] <= ask.attempt <= found["covers"]:
        yield "other attempts"
    if tool.effect == "once" and ask.attempt != found["attempt"]:
        yield "one attempt of a call that is sent once"
    if found["asked"].get("about"):
        yield "what came of it before"
    if found["verdict"] not in ("approve", "edit"):
        yield f"its opposite: {found['verdict']}"


def _handed(actor: str, via: str) -> Iterator[tuple[str, str, str]]:
    """Who was entitled, under which name, and by whose word; by the policy's at the end, which hands on but once."""
    links = json.loads(via.partition(":")[2]) if via.startswith("handed:") else [via]
    if len(links) == 3:
        yield actor, links[0], links[1]
        yield links[1], links[2], ""
    else:
        yield actor, links[0] if len(links) == 1 else "", ""


def _disowned(found: Datum, law: Law) -> Iterator[str]:
    for vote in found["votes"]:
        for who, name, _ in _handed(vote["actor"], vote["via"]):
            people = law.roles.get(name.removeprefix("role:")) if name.startswith("role:") else None
            if who in law.revoked or (people is not None and who not in people):
                yield who
