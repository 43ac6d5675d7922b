"""How long a policy of ten rules takes to judge a call: `python -m benchmarks.policy`. Prints JSON.

What the planner does per call: the variables that the rules name are worked out of the run's state and the call, handed
to CEL, and the rules asked. Typical rules: tool, effect, environment, tags, an argument, a label; the last one holds,
or fails. Medians of nine rounds, in CPU time.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from refold.core.approval.authority import variables
from refold.core.approval.decision import ToolFacts
from refold.core.approval.policy import Policy
from refold.core.events import CallProposed, RetryPolicy, RunRequested
from refold.core.run.state import RunState

WHENS = (
    'tool.effect == "pure"',
    'tool.name == "drop_table" && environment == "prod"',
    'tool.name in ["restart", "scale"] && run.depth > 0',
    '"dangerous" in tool.tags',
    'agent == "janitor" && run.calls > 100',
    'actor == ""',
    'run.labels.team == "payments" && tool.name.startsWith("pay_")',
    'environment == "staging"',
    '!args.path.startsWith("sandbox/")',
    "size(args.text) < 10000",
)
ARGS = json.dumps({"path": "sandbox/a.txt", "text": "x" * 100})
CALL = CallProposed(
    1,
    "write_file",
    ARGS,
    "key",
    "default",
    "keyed",
    1,
    RetryPolicy(),
)
TOOL = ToolFacts("write_file", "1", "", "keyed", ("files",))
ROUNDS, CALLS = 9, 2_000


def policy(*whens: str) -> Policy:
    """Rules with these conditions."""
    return Policy.parse({"rules": [{"name": str(n), "when": when, "allow": True} for n, when in enumerate(whens)]})


def us(work: Callable[[], Any]) -> float:
    """Microseconds of one call of it."""
    spans = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(CALLS):
            work()
        spans.append((time.process_time() - begun) / CALLS)
    return round(statistics.median(spans) * 1e6, 1)


def main() -> dict[str, float]:
    """The figures, in microseconds a call."""
    state = RunState("run-1")
    state.request = RunRequested("fixer", '{"ticket": 7}', "digest", "seed", "ann", labels={"team": "ops"})
    ten, one = policy(*WHENS), policy(WHENS[0])
    hundred = policy(*(f'tool.name == "tool-{n}"' for n in range(99)), "true")
    failing = policy(*WHENS[:-1], "size(args.missing) < 10000")

    def given(rules: Policy) -> dict[str, Any]:
        return variables(state, CALL, TOOL, environment="prod", needs=rules.needs)

    facts = given(ten)
    assert (ten.judge(facts).rule, failing.judge(facts).outcome) == ("9", "deny")
    return {
        "ten_rules_us": us(lambda: ten.judge(facts)),
        "ten_rules_with_variables_us": us(lambda: ten.judge(given(ten))),
        "one_rule_us": us(lambda: one.judge(facts)),
        "hundred_rules_us": us(lambda: hundred.judge(facts)),
        "ten_rules_the_last_fails_us": us(lambda: failing.judge(facts)),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(), indent=2) + "\n")
