"""`refold halt`: stop calls everywhere within a second."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from refold.cli import output
from refold.cli.platform import Shell
from refold.cli.signing import SigningOptions, warn_of_void
from refold.client.catalog import halt_rows
from refold.client.platform import login
from refold.core.approval.catalog import HALT, halt_name
from refold.core.errors import UsageError
from refold.core.messages import CatalogEntry
from refold.core.wire import canonical
from refold.engine.runtime.clock import clock_ms

Names = list[str] | None


@dataclass(frozen=True)
class HaltTarget(SigningOptions):
    everything: Annotated[bool, "--all", "All calls."] = False
    agent: Annotated[Names, "Calls of runs of this agent. May be repeated."] = None
    tool: Annotated[Names, "Calls of this tool. May be repeated."] = None
    pool: Annotated[Names, "Calls of this pool. May be repeated."] = None
    requester: Annotated[Names, "Calls of runs that this person requested. May be repeated."] = None

    def names(self) -> Iterator[str]:
        if self.everything:
            yield halt_name("all")
        by_scope = (("agent", self.agent), ("tool", self.tool), ("pool", self.pool), ("requester", self.requester))
        for scope, names in by_scope:
            yield from (halt_name(scope, name) for name in names or ())

    def publish_halts(self, reason: str | None) -> list[str]:
        """Publish halts with a reason, or lift them with None; return their names. **Raises** UsageError."""
        if not (names := list(self.names())):
            raise UsageError("say what is meant", hint="add --tool, --agent, --pool, --requester or --all")
        now_ms, content = clock_ms(), canonical.dumps(reason)
        self.publish([CatalogEntry(name, HALT, content, login(), now_ms) for name in names])
        return names


def halt(
    *,
    reason: Annotated[str, "Reason, shown beside each halted call."] = "",
    listed: Annotated[bool, "--list", "List the halts; halt nothing."] = False,
    lift: Annotated[bool, "Lift a halt. Calls that another halt covers still wait."] = False,
    target: HaltTarget,
) -> None:
    """Halt a tool, agent, pool, requester, or all. It takes effect within a second.

    No such call starts, of undeclared tools too; calls that have begun finish. Runs keep their state and wait until
    `refold halt --lift`.
    """
    if lift and (listed or reason):
        raise UsageError("--lift goes with the names of a halt alone", hint="leave --list and --reason out")
    if listed:
        _list_halts(target)
        return
    if lift:
        _lift(target)
        return
    if not reason.strip():
        raise UsageError("something is halted for a reason", hint="add --reason TEXT")
    names = target.publish_halts(reason)
    lines = [f"[red]halted[/] {output.escape(_target_name(name))}: {output.escape(reason)}" for name in names]
    target.print({"halted": names, "reason": reason}, "\n".join(lines))


def _lift(target: HaltTarget) -> None:
    names = target.publish_halts(None)
    left = halt_rows(target.platform.catalog.whole.halts)
    lines = [f"{output.escape(_target_name(name))} goes on" for name in names]
    lines += [f"[red]still halted[/] {output.escape(row.what)}" for row in left]
    target.print({"unhalted": names, "halts": left}, "\n".join(lines))


def _list_halts(shell: Shell) -> None:
    catalog = shell.platform.catalog
    warn_of_void(catalog)
    shell.print_rows(halt_rows(catalog.whole.halts), "what reason", "[green]nothing is halted[/]")


def _target_name(name: str) -> str:
    return " ".join(name.split("/", 2)[1:])
