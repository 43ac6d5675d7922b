"""`refold dev status` and `refold dev kill`: the processes of a running `refold dev`, and their sudden death."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from refold.cli import output
from refold.cli.platform import DataOption, Teller
from refold.client.addresses import data_dir, running_dev
from refold.client.platform import listens
from refold.core.errors import NotFoundError, UsageError
from refold.embedded.files import FolderLock

ROLES_KILLED = ("planner", "executor", "approval", "broker", "valkey")


@dataclass(frozen=True)
class Beside(Teller):
    """The options of what looks at a running `refold dev`."""

    data: DataOption = ""

    def running(self) -> dict[str, Any]:
        """What its dev.json says. **Raises** NotFoundError when nobody holds the folder: its pids may be anybody's."""
        content = running_dev(self.data)
        if not content or not FolderLock(data_dir(self.data) / "lock").held():
            raise NotFoundError(f"no `refold dev` runs on {data_dir(self.data)}", hint="`refold dev`, or --data FOLDER")
        return content


def status(*, beside: Beside) -> None:
    """Show the processes of a running `refold dev`."""
    content = beside.running()
    addresses = [
        {"name": name, "address": address, "answers": listens(address.rpartition("//")[2].partition("/")[0])}
        for name, address in (("kafka", content["kafka"]), ("redis", content["redis"]))
    ]
    restarts = content.get("restarts", {})
    processes = [
        {"role": role, "number": number, "pid": pid, "state": state_of(pid), "restarts": restarts.get(role, 0)}
        for role, pids in content["processes"].items()
        for number, pid in enumerate(pids or [0], start=1)
    ]

    def in_words() -> None:
        for each in addresses:
            answers = "[green]listens[/]" if each["answers"] else "[red]nobody listens[/]"
            output.say(f"{each['name']:<9} {output.escape(each['address'])}  {answers}")
        output.print_rows(processes, ("role", "number", "pid", "state", "restarts"), "no processes")

    beside.tell({"addresses": addresses, "processes": processes}, in_words)


def kill_processes(
    role: Annotated[str, f"One of {', '.join(ROLES_KILLED)}."] = "",
    number: Annotated[int, "N", "Which of several, as `refold dev status` counts."] = 1,
    *,
    all_: Annotated[bool, "All of the role; without a role, all there are."] = False,
    beside: Beside,
) -> None:
    """Kill processes of a running `refold dev` by SIGKILL."""
    if role not in (*ROLES_KILLED, "") or not (role or all_):
        raise UsageError(f"{role!r} is no role", hint=f"say which: {', '.join(ROLES_KILLED)}, or --all of them")
    there: dict[str, list[int]] = beside.running()["processes"]
    chosen = {name: there.get(name, []) for name in ([role] if role else ROLES_KILLED)}
    if not all_:
        chosen = {role: chosen[role][number - 1 : number] if number > 0 else []}
    victims = [(name, pid) for name, pids in chosen.items() for pid in pids]
    if not victims:
        hint = "`refold dev status` shows them; one that has just died has no process for a moment"
        raise NotFoundError(f"there is no {role or 'process'} {'' if all_ else number}".rstrip(), hint=hint)
    for _, pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    row = [{"role": name, "pid": pid} for name, pid in victims]
    killed = "killed [bold]{} {}[/] (SIGKILL); `refold dev status` shows its successor"
    beside.tell(row, "\n".join(killed.format(*victim) for victim in victims))


def state_of(pid: int) -> str:
    """Whether a process runs, is stopped (SIGSTOP), has just ended, or is being started again."""
    if not pid:
        return "being started again"
    if sys.platform != "linux":
        return "running"
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
    return {"T": "stopped", "t": "stopped", "Z": "gone"}.get(letter, "running")
