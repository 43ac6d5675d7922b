"""Fork process that may run `pure` calls, such as models, under a budget."""

import os
from dataclasses import dataclass
from queue import SimpleQueue

from refold.core.defaults import PAYLOAD_BYTES
from refold.core.errors import UsageError
from refold.core.events import Failure, Spendable
from refold.core.messages import ToolRequest, ToolResult
from refold.core.run.account import tokens_of, usage_of
from refold.core.wire import canonical
from refold.engine.adapters.tools.toolbox import Toolbox
from refold.engine.ports.effects import StartTool, ToolEnded
from refold.lab.forks.worker import serve
from refold.sdk.app import App

BUDGET = "REFOLD_FORK_BUDGET"
"""Variable with the budget of a process, in JSON."""


@dataclass
class PureCalls:
    """Runs attempts of `pure` calls, one at a time, until the budget is used up."""

    app: App
    budget: Spendable

    def __post_init__(self) -> None:
        self._ended: SimpleQueue[ToolEnded] = SimpleQueue()
        self._tools = Toolbox(self.app, self._ended.put, threads=1, max_result=PAYLOAD_BYTES)
        self._calls = self._tokens = self._nano_usd = 0

    @property
    def left(self) -> bool:
        most = self.budget
        spent = ((most.calls, self._calls), (most.tokens, self._tokens), (most.nano_usd, self._nano_usd))
        return all(used < limit for limit, used in spent if limit)

    def __call__(self, request: ToolRequest) -> ToolResult:
        """Run an attempt. **Raises** UsageError for an unknown price under a budget in dollars."""
        self._calls += 1
        self._tools.start([StartTool(self._calls, request, probe=False)])
        ended = self._ended.get()
        if (usage := usage_of(ended.result)) is not None:
            self._tokens += tokens_of(usage) or 0
            price = self.app.prices.of(usage)
            if price is None and self.budget.nano_usd:
                raise UsageError(f"nobody knows what {usage.get('model')} costs", hint="--budget tokens=N or calls=N")
            self._nano_usd += price or 0  # the price of a call is known only after it
        failure = Failure(ended.code, ended.message, ended.detail) if ended.code else None
        return ToolResult(
            request.call_id,
            request.run_id,
            request.step,
            request.attempt,
            ended.status,
            ended.result,
            failure,
            retryable=ended.retryable,
            retry_after_ms=ended.retry_after_ms,
        )


def budget_text(budget: Spendable) -> str:
    return canonical.dumps({"calls": budget.calls, "tokens": budget.tokens, "nano_usd": budget.nano_usd})


if __name__ == "__main__":
    most = Spendable(**canonical.parse(os.environ.pop(BUDGET)))
    serve(lambda app: PureCalls(app, most))
