"""`refold serve`: one service in this process, until it is told to stop.

The one place where rooms are put together: a service, its adapters, its host. Each service is a module of its own that
imports what it needs and no more, because the time to start is time to recover; and the event log comes first, because
its producer needs half a second before it can write.
"""

from __future__ import annotations

from typing import ClassVar

from refold.cli.lazy import Commands, Lazy


class Services(Lazy):
    """The services, by name."""

    later: ClassVar = {
        "planner": ("serve.planner:planner_group", "Decide: read inputs, append to the run log, order work."),
        "executor": ("serve.executor:executor_group", "Act: claim calls, run tools, record results."),
        "approval": ("serve.approval:judge_group", "Judge: count votes on calls that wait for people, and sign."),
        "archivist": ("serve.archivist:archivist_group", "Archive and erase what ended long ago."),
    }


serve_group = Commands("Run one service in this process: planner, executor, approval or archivist.", cls=Services)


@serve_group.callback()
def _serve() -> None:
    """Run one service in this process: planner, executor, approval or archivist."""
