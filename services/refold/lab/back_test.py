"""Back-test of a policy: judges logged calls again and compares with the recorded judgements."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from refold.client.reading.history import Run
from refold.client.reading.model import Data, json_text, plain
from refold.core.approval.authority import Authority, variables
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import ToolFacts
from refold.core.approval.policy import Explanation, Judgement, Policy
from refold.core.errors import NotFoundError
from refold.core.events import NO_REQUEST, ApprovalDecided, CallProposed, Event
from refold.core.ids import asked_about, call_id, parse_call_id
from refold.core.run.state import RunState
from refold.lab.forks.record import judgement_in

USUAL_MS = 3_600_000
"""Default validity of a decision."""
OF_THE_APP = frozenset({"tool.version", "tool.tags"})
"""Facts of a call that the log does not have."""


class RecordedCall(NamedTuple):
    """A call with its newest judgement. `call` has the judged arguments, `edited` later ones by people."""

    state: RunState
    call_id: str
    call: CallProposed
    at_ms: int
    judgement: Judgement
    edited: CallProposed | None = None


class BackTest:
    """Policy that judges logged calls today. Without `tools`, rules about facts of the app fail."""

    def __init__(self, policy: Policy, environment: str, tools: Mapping[str, ToolFacts] | None = None) -> None:
        self.policy = policy
        self._environment, self._tools = environment, tools
        catalog = Catalog()
        catalog.policies[policy.digest] = policy
        self._authority = Authority(tools or {}, environment, catalog)

    @property
    def unknown(self) -> frozenset[str]:
        return self.policy.needs & OF_THE_APP if self._tools is None else frozenset()

    def variables(self, state: RunState, call: CallProposed) -> dict[str, Any]:
        tool = (self._tools or {}).get(call.tool)
        return variables(state, call, tool, environment=self._environment, needs=self.policy.needs - self.unknown)

    def judge(self, state: RunState, call: CallProposed) -> Judgement:
        if self._tools is None:
            return self.policy.judge(self.variables(state, call))
        return self._authority.judge(state, call, self.policy.digest)

    def explain(self, state: RunState, call: CallProposed) -> list[Explanation]:
        return self.policy.explain(self.variables(state, call))

    def differences(self, calls: Iterable[RecordedCall]) -> list[Data]:
        """Rows of the calls that the policy judges differently today, by outcome or by requirement."""
        rulings = ((call, call.judgement, self.judge(call.state, call.call)) for call in calls)
        return [
            {
                "call_id": call.call_id,
                "tool": call.call.tool,
                "args": json_text(call.call.args),
                "kind": f"{then.outcome} -> {now.outcome}",
                "recorded": plain(then),
                "now": plain(now),
            }
            for call, then, now in rulings
            if (now.outcome, now.requirement) != (then.outcome, then.requirement)
        ]


def recorded(run: Run, *, copies: bool = False) -> list[RecordedCall]:
    """Return the judged calls of a run in order of steps; without `copies`, not those copied by a live fork."""
    policy = (run.state.request or NO_REQUEST).policy  # without one, calls count as allowed
    calls, own = dict[int, RecordedCall](), set[int]()
    for at_ms, seq, event in _timed_events(run):
        earlier = calls.get(getattr(event, "step", 0))
        judgement = judgement_in(event, earlier.judgement.policy if earlier else policy)
        own |= {getattr(event, "step", 0)} if copies or not run.state.copied(seq) else set()
        if isinstance(event, CallProposed) and judgement is not None:
            calls[event.step] = RecordedCall(run.state, call_id(run.state.run_id, seq), event, at_ms, judgement)
        elif earlier is not None:
            calls[earlier.call.step] = _with_event(earlier, event, at_ms, judgement)
    return [calls[step] for step in sorted(calls.keys() & own)]


def _with_event(call: RecordedCall, event: Event, at_ms: int, judgement: Judgement | None) -> RecordedCall:
    if isinstance(event, ApprovalDecided) and event.verdict in ("edit", "amend"):
        return call._replace(edited=dataclasses.replace(call.call, args=event.args, key=event.key))
    if judgement is None:
        return call
    # With the arguments that it has by then.
    return call._replace(judgement=judgement, at_ms=at_ms, call=call.edited or call.call, edited=None)


def _timed_events(run: Run) -> Iterator[tuple[int, int, Event]]:
    for judged in run.records:
        assert judged.entry is not None, "what counts was read"
        for seq, event in enumerate(judged.entry.events, judged.entry.seq):
            yield judged.entry.at_ms, seq, event


def under(runs: Iterable[Run], policy: str) -> tuple[list[str], list[str]]:
    """Return unfinished runs under a policy, and approvals that wait under it."""
    going = [run.state for run in runs if not run.state.over]
    waiting = [
        state.waits_for(step)
        for state in going
        for step, opened in state.open.items()
        if opened.question and opened.question.event.policy == policy
    ]
    return [state.run_id for state in going if state.request and state.request.policy == policy], waiting


def find(run: Run, call: str) -> RecordedCall:
    """Return a call by its id or an approval's. **Raises** NotFoundError."""
    name = asked_about(call)
    parse_call_id(name)
    for candidate in recorded(run, copies=True):
        if candidate.call_id == name:
            return candidate
    raise NotFoundError(f"there is no call {call}", hint=f"`refold run show {run.state.run_id}` shows all")


def what_changes(row: Data) -> str:
    """Describe how another policy changes a call's requirement: `quorum 1 -> 2`; empty if it changes the outcome."""
    before, after = row["recorded"], row["now"]
    if before["outcome"] != after["outcome"]:
        return ""
    pairs = [(name, before[name], after[name]) for name in ("rule", "message")]
    old, new = before["requirement"] or {}, after["requirement"] or {}
    pairs += [(name.removesuffix("_ms"), value, new.get(name)) for name, value in old.items()]
    return ", ".join(
        f"{name} {_value_text(name, old, was)} -> {_value_text(name, old, now)}"
        for name, was, now in pairs
        if was != now
    )


def _value_text(name: str, requirement: Data, value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "nobody"
    if f"{name}_ms" in requirement and isinstance(value, int):
        return _span_text(value) if value else "never"
    return str(value) or "none"


def requirement_words(needed: Data) -> str:
    uses = needed["remember_uses"]
    more = {
        "the requester too": not needed["not_requester"],
        f"within {_span_text(needed['expires_ms'])}": needed["expires_ms"],
        f"then {needed['on_expiry']}": needed["expires_ms"] and needed["on_expiry"] != "reject",
        f"after {_span_text(needed['escalate_ms'])} also {', '.join(needed['escalate_to'])}": needed["escalate_ms"],
        f"escalates to {', '.join(needed['escalate_to'])}": needed["escalate_to"] and not needed["escalate_ms"],
        f"valid {_span_text(needed['valid_ms'])}": needed["valid_ms"] != USUAL_MS,
        f"may be remembered {_span_text(needed['remember_ms'])}, {uses} uses": uses,
        needed["message"]: needed["message"],
    }
    who = f"{needed['quorum']} of {', '.join(needed['approvers'])}"
    return ", ".join([who, *(text for text, applies in more.items() if applies)])


def _span_text(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"
