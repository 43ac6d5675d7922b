"""Scenarios of calls: a tool of each class and all that it may do, signals, poison, and runs beside each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refold.core.ids import agent_tool
from refold.core.topics import RUN_REQUESTED, RUN_SIGNALLED
from tests.simulator.settings import ANSWERS, ORDERS
from tests.simulator.workload.inputs import ClientInput, Scenario, erasure, operation, pause, poison, signal, start_run


def _one(name: str, tool: str, *scripts: str, verdict: str = "truth", agent: str = "one", **changes: Any) -> Scenario:
    return Scenario(name, (start_run("r-1", agent, {"tool": tool}),), {tool: scripts}, verdict, changes)


def _fails(name: str, at_ms: int) -> ClientInput:
    """An operator fails the run; too early, it is refused, and has to be said once more."""
    return operation("r-1", name, "fail", at_ms=at_ms)


def _asked(name: str, tool: str, *scripts: str, **changes: Any) -> Scenario:
    """With people who are asked what came of a call."""
    return replace(_one(name, tool, *scripts, approvals=1, **changes), policy="allow")


def _hasty(name: str, tool: str, *scripts: str, **changes: Any) -> Scenario:
    """With people who look at once and answer at once."""
    return replace(_asked(name, tool, *scripts, **changes), operator_ms=15)


def _cancelled(name: str, tool: str, script: str, at_ms: int) -> Scenario:
    inputs = (start_run("r-1", "one", {"tool": tool}), signal("r-1", "c", "cancel", {"reason": "enough"}, at_ms=at_ms))
    return Scenario(name, inputs, {tool: (script,)})


def _forked(name: str, *starts: ClientInput, forks: int, retries: int = 0, **more: Any) -> Scenario:
    """Runs that an operator forks; a tool may have a script."""
    scripts: dict[str, tuple[str, ...]] = {tool: (more.pop(tool),) for tool in ("push", "book", "pay") if tool in more}
    return Scenario(name, starts, scripts, changes=more, forks=forks, retries=retries)


def _crowd(name: str, size: int, **changes: Any) -> Scenario:
    """Many at once, for services that take few at a time."""
    runs = [start_run(f"r-{number}", "one", {"tool": "push"}, at_ms=4 * number) for number in range(size)]
    return Scenario(name, tuple(runs), changes=changes)


_PUSH = start_run("r-1", "one", {"tool": "push"})
_OTHERS = start_run("r-1", "one", {"tool": "push"}, requester="ada")

_TALK = (start_run("r-1", "talker", {"turns": 5}),)
_FAILS = Scenario("fails", (start_run("r-1", "three"),), {"book": ("terminal",)})

CALLS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        _one("pure", "look"),
        _one("keyed", "push"),
        _one("probed", "book"),
        Scenario("whole", (start_run("r-1", "whole"),), {agent_tool("whole", ""): ("slow", "raises-after")}),
        _one("once", "pay"),
        _one("keyed-eager", "push", commit_ms=1),
        Scenario("talk", _TALK),
        Scenario("talk-fails", (start_run("r-1", "talker", {"turns": 4}),), {"recall": ("not-done",)}),
        Scenario(
            "talk-shared",
            tuple(start_run(f"r-{n}", "talker", {"turns": 4}) for n in range(3)),
            changes={"planners": 2, "executors": 2},
        ),
        Scenario("three", (start_run("r-1", "three"),)),
        Scenario("fan", (start_run("r-1", "fan"),)),
        Scenario("twins", (start_run("r-1", "twins"),)),
        _one("keyed-retried", "push", "not-done", "raises-after", "ok"),
        _one("probed-retried", "book", "raises-before", "raises-after"),
        _one("pure-exhausted", "look", "raises-before", "not-done", "raises-before"),
        _one("keyed-terminal", "push", "terminal", agent="handling"),
        _one("keyed-terminal-deaf", "push", "terminal", "slower", agent="handling"),
        _one("keyed-exhausted", "push", "raises-after", "raises-after", "hangs-before"),
        _one("keyed-slow", "push", "slow"),
        _one("keyed-shared", "push", "slow", planners=2, executors=2, sharing=True),
        _one("keyed-crawls", "push", "crawls"),
        _one("probed-crawls", "book", "crawls", chained_lease_ms=400),
        _one("once-crawls", "pay", "crawls", chained_lease_ms=400),
        _one("keyed-late", "push", "late"),
        _one("keyed-hangs", "push", "hangs-after"),
        _one("keyed-window", "pushed_briefly", "hangs-after", "late"),
        _one("keyed-forgets", "pushed_briefly", "hangs-after", "crawls", away_ms=1_200),
        _one("keyed-broken", "push", "broken", agent="handling"),
        _one("probed-slower", "book", "slower"),
        _one("probed-hangs", "book", "hangs-after"),
        _one("probed-late", "book", "late"),
        _one("once-not-done", "pay", "not-done", "ok"),
        _one("once-undone", "pay", "not-done", "slow"),
        _one("once-retried", "pay", "not-done", "slow"),  # of which a lost end of its claims is one claim
        _one("once-raises", "pay", "raises-after"),
        _asked("once-did-not", "pay", "raises-before"),
        _one("once-hangs", "pay", "hangs-before"),
        _one("once-gives-up", "pay", "raises-after", verdict="give_up", agent="handling"),
        _one("once-happened", "pay", "hangs-before", verdict="happened"),
        _asked("once-wrongly-not", "pay", "late", verdict="did_not_happen"),
        _asked("once-late", "pay", "late"),
        _asked("keyed-doubted", "pushed_briefly", "hangs-after", "crawls", away_ms=1_200),
        Scenario("sleep", (start_run("r-1", "sleeper"),)),
        _one("race", "push", "slow", agent="race"),
        _one("hurried", "pay", "slow", agent="hurried"),
        _one("hurried-doubt", "pay", "raises-after", agent="race"),
        _one("group", "pay", "terminal", agent="group"),
        Scenario("failing", (start_run("r-1", "failing"),)),
        Scenario("unknown-agent", (start_run("r-1", "nobody"), _fails("f", 300), _fails("again", 13_000))),
        replace(_FAILS, name="retried", retries=1),
        replace(_FAILS, name="retried-shared", retries=2, changes={"planners": 2, "executors": 2, "sharing": True}),
        _forked("forked", start_run("r-1", "three"), forks=1),
        _forked("forked-twice", start_run("r-1", "three"), start_run("r-2", "three"), forks=4),
        _forked("forked-asleep", start_run("r-1", "sleeper"), start_run("r-2", "sleeper"), forks=4),
        _forked("forked-waiting", start_run("r-1", "late"), start_run("r-2", "pair"), forks=4),
        _forked("forked-parent", start_run("r-1", "parent", {"tool": "push"}), push="slow", forks=2),
        _forked("forked-held", _PUSH, pause("r-1", "p", at_ms=8), push="terminal", forks=3, retries=2),
        _forked("forked-slow", _PUSH, push="slow", forks=2),
        _forked("forked-once", start_run("r-1", "one", {"tool": "pay"}), pay="slow", forks=2),
        _forked("forked-shared", start_run("r-1", "three"), forks=3, planners=2, executors=2, sharing=True),
        _forked("forked-failed", start_run("r-1", "three"), book="terminal", forks=2, retries=2),
        _forked("forked-retried", start_run("r-1", "handling", {"tool": "book"}), book="terminal", forks=3, retries=1),
        _cancelled("cancel-keyed", "push", "slow", 100),
        _cancelled("cancel-once", "pay", "slower", 100),
        _cancelled("cancel-doubt", "pay", "raises-after", 300),
        Scenario("cancel-operated", (_PUSH, operation("r-1", "c", "cancel", at_ms=5))),
        Scenario("cancel-foreign", (_OTHERS, signal("r-1", "c", "cancel", at_ms=5))),
        _one("held", "push_or_hold", "not-done", "not-done", "not-done", agent="handling"),
        _one("held-shared", "pay_or_hold", "not-done", planners=2, executors=2, sharing=True),
        _one("held-hurried", "push_or_hold", "not-done", "not-done", agent="hurried"),
        Scenario("two-runs", (start_run("r-1", "one", {"tool": "pay"}), start_run("r-2", "one", {"tool": "push"}))),
        Scenario("two-runs-eager", (_PUSH, start_run("r-2", "one", {"tool": "push"})), changes={"commit_ms": 1}),
        Scenario(
            "two-runs-apart",
            (_PUSH, start_run("r-2", "one", {"tool": "push"}, at_ms=30)),
            changes={"commit_ms": 1, "snapshot_ms": 150},
        ),
        _crowd("crowd", 8, backlog=2, slots=1, active=2),
        Scenario("repeated", (_PUSH, replace(_PUSH, kind="repeat"))),
        Scenario("conflict", (_PUSH, start_run("r-1", "one", {"tool": "pay"}, at_ms=30, kind="conflict"))),
        Scenario("stray", (start_run("r-1", "one", {"tool": "push"}, stray=True),)),
        Scenario("not-before", (start_run("r-1", "one", {"tool": "push"}, not_before_ms=1_700_000_000_900),)),
        Scenario(
            "poison",
            (
                poison(RUN_REQUESTED, b"\xff not json"),
                _PUSH,
                poison(RUN_SIGNALLED, b'{"run_id": "r-1", "extra": 1}'),
                poison(ANSWERS, b"\0\0\0\0\x09nonsense"),
                poison(ORDERS, b"{}"),
                erasure(RUN_REQUESTED, at_ms=20),
            ),
        ),
        Scenario(
            "refused-before",
            (signal("r-1", "c", "cancel", {"reason": "too early"}), start_run("r-1", "sleeper", at_ms=4_000)),
        ),
        Scenario("early-signal", (signal("r-1", "c", "cancel"), replace(_PUSH, at_ms=300))),
        _one("once-shared", "pay", "slow", planners=2, executors=2, sharing=True),
        _hasty("once-creeps", "pay", "creeps", "creeps"),
        # Who stands still for more than half of its lease, and less than all of it, may not begin.
        _one("once-hesitates", "pay", zombie_ms=600),
        _hasty("once-creeps-shared", "pay", "creeps", planners=2, executors=2, sharing=True),
        # Frozen for just longer than a session, an executor is back while its right to act still holds.
        _hasty("once-blinks", "pay", "creeps", executors=2, sharing=True, zombie_ms=300, commit_ms=500),
        _hasty("probed-creeps-shared", "book", "creeps", planners=2, executors=2, sharing=True),
        _one("once-uneven", "pay", planners=2, executors=2, sharing=True, uneven=True),
        _one("probed-shared", "book", planners=2, executors=2, sharing=True),
    )
}
"""By name."""
