"""Code of runs under way, as much as there is room for: what was used longest ago is made again from its history."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from refold.sdk.execution import Execution

EXECUTION_BYTES = 4_096
"""What the code of a run takes that waits for one call."""

TASK_BYTES = 2_048
"""What one more of its tasks takes."""


class LiveCode:
    """The executions of one lane, by run. `close` ends one; `most` is what all may take, roughly. **Units**: bytes.

    What an execution takes nobody can tell, so it is taken for its tasks and all that its history has handed to it.
    """

    def __init__(self, most: int, close: Callable[[str, Execution], None]) -> None:
        self._most, self._close = most, close
        self._executions: OrderedDict[str, tuple[Execution, int]] = OrderedDict()
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._executions))

    def __len__(self) -> int:
        return len(self._executions)

    def get(self, run: str) -> Execution | None:
        """The execution of a run, if there is one."""
        kept = self._executions.get(run)
        return kept[0] if kept else None

    def keep(self, run: str, execution: Execution, history_bytes: int) -> None:
        """An execution was used: it is the last one to go."""
        size = EXECUTION_BYTES + TASK_BYTES * execution.tasks + history_bytes
        before = self._executions.pop(run, None)
        self._executions[run] = execution, size
        self.bytes += size - (before[1] if before else 0)
        while self.bytes > self._most and len(self._executions) > 1:
            self.drop(next(iter(self._executions)))

    def drop(self, run: str) -> None:
        """Ends the execution of a run, if there is one."""
        if kept := self._executions.pop(run, None):
            self.bytes -= kept[1]
            self._close(run, kept[0])
