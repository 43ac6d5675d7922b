"""The pytest fixture `refold`: the kit over one app, with golden histories beside the test."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refold.core.errors import NonDeterminismError, UsageError
from refold.core.run.state import RunState
from refold.sdk.app import App
from refold.testing.agents import AgentRun, start
from refold.testing.crashes import CrashReport, crash_matrix
from refold.testing.reruns import replay

UPDATE = "--refold-update"


class Kit:
    """The kit over an app. `histories` is the folder of golden ones, `name` the default name of one.

    `update`: golden histories that are missing or disagree are written.
    """

    def __init__(self, app: App, histories: Path, name: str, *, update: bool = False) -> None:
        self.app, self.histories, self.name, self.update = app, histories, name, update
        self.runs: list[AgentRun] = []

    def run(self, agent: str, /, **inputs: Any) -> AgentRun:
        """Take an agent to its end, see `refold.testing.run`."""
        return self.start(agent, **inputs).finish()

    def start(self, agent: str, /, **inputs: Any) -> AgentRun:
        """Take an agent to its first waits, see `refold.testing.start`."""
        self.runs.append(start(self.app, agent, **inputs))
        return self.runs[-1]

    def crash_matrix(self, agent: str, inputs: Mapping[str, Any], **options: Any) -> CrashReport:
        """Kill an agent wherever it can be killed, see `refold.testing.crash_matrix`."""
        __tracebackhide__ = True
        return crash_matrix(self.app, agent, inputs, **options)

    def replay(self, history: str | Path | AgentRun) -> RunState:
        """Run the present code along a history, see `refold.testing.replay`."""
        return replay(self.app, history)

    def golden(self, run: AgentRun, name: str = "") -> RunState:
        """Check the present code against a golden history, `histories`/NAME.json, and return its fold.

        With `pytest --refold-update` a history that is missing or disagrees is written. **Raises** NonDeterminismError,
        which names the first step that differs; UsageError if there is no history.
        """
        __tracebackhide__ = True
        path = self.histories / f"{name or self.name}.json"
        if not path.is_file() and not self.update:
            raise UsageError(f"there is no golden history {path}", hint=f"pytest {UPDATE} writes it: commit it then")
        try:
            if path.is_file():
                return replay(self.app, path)
        except (NonDeterminismError, UsageError):
            if not self.update:
                raise
        path.parent.mkdir(parents=True, exist_ok=True)
        run.save(path)
        return replay(self.app, path)

    def close(self) -> None:
        """End the executors of all runs, waiting ones too."""
        for run in self.runs:
            run.executors.close()
