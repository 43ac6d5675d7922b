"""Options and output of operations on runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from refold.cli import options, output
from refold.cli.platform import Shell
from refold.client.operations.operation import OperationRow, Outcome, Performed, many, one
from refold.client.operations.run import Done, Signed, signing
from refold.client.platform import login
from refold.client.reading.outcome import CommandResult
from refold.core.approval.signature import REQUEST
from refold.core.ids import RunId
from refold.engine.runtime.addresses import own_key


@dataclass(frozen=True)
class Operator(Shell):
    """Options of commands that act on runs: the recorded actor, and the time to wait for the planner."""

    actor: options.ActorOption = ""
    timeout: Annotated[options.Seconds, "Wait up to this long for the planner."] = 30.0

    @property
    def who(self) -> str:
        return self.actor or login()

    def signing(self, key: str) -> Signed:
        return signing(own_key(REQUEST, key, self.data), self.platform.settings.platform)

    def perform(self, operation: OperationRow) -> Performed:
        return one(self.runs, self.platform.publisher, operation, self.timeout)

    def perform_all(self, operations: Sequence[OperationRow], doing: str) -> dict[RunId, Outcome]:
        """Send operations and wait for all outcomes; `doing` labels the progress."""
        return many(self.runs, self.platform.publisher, operations, self.timeout, partial(output.progress(), doing))

    def print_answer(
        self, answer: Performed, text: str, shape: type[CommandResult] = CommandResult, **facts: Any
    ) -> None:
        """Print an operation's outcome with the run's status, as a `shape` with more `facts`."""
        row = shape(**{**dict(answer.result), "status": answer.run.state.status}, **facts)
        self.print(row, f"{text} is {output.styled(row.status)}")

    def print_many(self, rows: Sequence[Any], text: str, *, ok: bool, **more: Any) -> None:
        self.print({"dry_run": False, "count": len(rows), **more, "runs": rows}, text, ok=ok)

    def print_selected(self, rows: Sequence[Any], show: Callable[[], object]) -> None:
        self.print({"dry_run": True, "count": len(rows), "runs": rows}, show)


def repeat_warning(again: list[Done]) -> str:
    """Question to confirm before calls are repeated whose effect may have happened."""
    calls = ", ".join(f"step {done.step} {done.tool} ({done.effect})" for done in again[:10])
    more = f" and {len(again) - 10} more" if len(again) > 10 else ""
    harm = "These may have had their effect, and would be made once more if the code asks for them"
    return f"{harm}: {calls}{more}. Go on?"
