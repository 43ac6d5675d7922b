"""`python -m examples.demo`, or `make demo`: a deployment in five steps, with processes killed on the way.

Nothing in it is acted. The executor is killed in step 3, after the cloud has done what it was told and before anybody
could write that down; the planner is killed in step 4. With `--once`, the executor is killed in a tool that cannot be
repeated or asked.
"""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from examples.demo.stage import EXAMPLES, Accident, Stage
from examples.demo.verdict import judge
from rich.live import Live

from refold.cli import output
from refold.cli.errors import FAILED, expected, fail, report
from refold.cli.platform import connect, quiet
from refold.cli.views import runs as run_views
from refold.client.reading.history import Run
from refold.client.reading.run import RunEvent, events_of, info_of
from refold.core.errors import RefoldError, TimedOutError

INPUT = {"service": "shop", "version": "1.2.3"}
LIMIT_S = 60.0


def demo(
    once: Annotated[
        bool, typer.Option("--once", help="The honest other case: a tool that cannot be repeated.")
    ] = False,
    *,
    stay: Annotated[bool, typer.Option("--stay", help="Keep all of it running at the end, until Ctrl-C.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data folder, for a look at it.")] = False,
    app: Annotated[str, typer.Option("--app", help="The app with the agents `deploy` and `deploy_once`.")] = "",
    json_: Annotated[bool, typer.Option("--json", help="Print data, one JSON value.")] = False,
) -> None:
    """Deploy in five steps on a real Kafka while processes are killed, and prove that nothing happened twice."""
    began = time.monotonic()
    target = app or f"{EXAMPLES / 'deploy.py'}:app"
    folder = Path(tempfile.mkdtemp(prefix="refold-demo-"))
    try:
        found = _perform(folder, target, once=once, silent=json_, stay=stay, began=began)
    except RefoldError:
        output.console(stderr=True).print(f"[dim]data and logs of the demo that failed: {folder}[/]")
        raise
    if keep or not found["ok"]:
        found["folder"] = str(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if json_:
        output.emit(found)
    else:
        _print(found)
    if not found["ok"]:
        fail(FAILED)


def _perform(folder: Path, app: str, *, once: bool, silent: bool, stay: bool, began: float) -> dict[str, Any]:
    quiet()
    screen = Screen(silent=silent)
    with ExitStack() as stack:
        screen.tell("starting a broker, Valkey, a planner, an executor and a fake cloud")
        stage = stack.enter_context(Stage(folder, app, screen.tell, output.progress()))
        screen.tell(f"Kafka {stage.stack.kafka}, cloud {stage.cloud.address}")
        stack.enter_context(screen)
        run = f"demo-{secrets.token_hex(3)}"
        found = _once(stage, run, screen) if once else _twice_killed(stage, run, screen)
        found |= {"seconds": round(time.monotonic() - began, 1), "page": f"{stage.stack.gateway}/runs/{run}"}
        if stay and found["ok"]:
            stage.stack.run_until_stopped(lambda: _tell_open(found["page"]))
        return found


def _tell_open(page: str) -> None:
    output.say(f"\nall of it stays open until Ctrl-C: [bold]{page}[/]")


def _twice_killed(stage: Stage, run: str, screen: Screen) -> dict[str, Any]:
    """The executor dies in step 3 and the planner in step 4."""

    def accident() -> None:
        stage.cloud.wait_held("update_load_balancer")
        stage.kill("executor", "in step 3: the load balancer is updated, and nobody has written it down")
        stage.cloud.release("update_load_balancer")
        stage.cloud.wait_held("switch_mesh")
        stage.kill("planner", "in step 4: the mesh is being switched")
        stage.cloud.release("switch_mesh")

    for action in ("update_load_balancer", "switch_mesh"):
        stage.cloud.hold(action)
    _request(stage, run, "deploy", screen)
    killer = Accident(accident)
    killer.start()
    live = _follow(stage, run, screen, killer)
    killer.join(LIMIT_S)
    killer.check()
    return judge(stage, live)


def _once(stage: Stage, run: str, screen: Screen) -> dict[str, Any]:
    """The executor dies in a `once` tool; a human finds out what happened and says so."""
    said: dict[str, Any] = {}

    def accident() -> None:
        stage.cloud.wait_held("switch_mesh")
        stage.kill("executor", "in step 4: the mesh is switched, and nobody has written it down")
        stage.cloud.release("switch_mesh")

    def resolve() -> None:
        listed = stage.command("run", "list", "--status", "doubt")
        row = next(row for row in listed if row["run_id"] == run)
        [call], [question] = row["in_doubt"], row["approvals"]
        screen.tell(f"[bold magenta]in doubt[/]: {call}, as `refold run list --status doubt` shows")
        answer = json.dumps(stage.cloud.effects("switch_mesh")[-1]["id"])
        screen.tell(f"a human looks at the mesh and runs: refold run resolve {question} --happened '{answer}'")
        words = ["--happened", answer, "--actor", "operator", "--comment", "seen in the mesh"]
        words += ["--data", str(stage.folder)]  # the key that signs votes is there
        said.update(call=call, listed=listed, resolved=stage.command("run", "resolve", question, *words))

    stage.cloud.hold("switch_mesh")
    _request(stage, run, "deploy_once", screen)
    killer, human = Accident(accident), Accident(resolve)
    killer.start()
    live = _follow(stage, run, screen, killer, human)
    killer.join(LIMIT_S)
    human.join(LIMIT_S)
    killer.check()
    human.check()
    return judge(stage, live, said)


def _request(stage: Stage, run: str, agent: str, screen: Screen) -> None:
    requested = stage.outside("start_run.py", "--id", run, "--agent", agent, "--input", json.dumps(INPUT))
    place = requested["request"]
    screen.tell(f"an outside client has produced plain JSON: {place['topic']}/{place['partition']}/{place['offset']}")


def _follow(stage: Stage, run: str, screen: Screen, killer: Any, human: Any = None) -> Run:
    """Folds the log record by record, as it grows, until the run is over; `human` is called when a call is in doubt."""
    deadline = time.monotonic() + LIMIT_S
    for found, judged in connect(kafka=stage.stack.kafka).runs.follow(run):
        killer.check()
        if judged is not None:
            screen.show(found)
        if human is not None and not human.is_alive() and human.ident is None and found.timeline.in_doubt:
            human.start()
        if human is not None:
            human.check()
        if found.state.over:
            return found
        if time.monotonic() > deadline:
            raise TimedOutError(f"the run is {found.state.status} after {LIMIT_S:g} s")
    raise AssertionError("a tail goes on for ever")


class Screen:
    """What the audience sees: a live picture on a terminal, lines elsewhere, nothing with `silent`."""

    def __init__(self, *, silent: bool) -> None:
        self._silent, self._began, self._told = silent, time.monotonic(), 0
        self._console = output.console()
        self._live = Live(console=self._console, refresh_per_second=10) if sys.stdout.isatty() and not silent else None

    def __enter__(self) -> Screen:
        (self._live or nullcontext()).__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, text: str) -> None:
        """One line about what happens outside the run. May be called by any thread."""
        if not self._silent:
            self._console.print(f"[dim]{time.monotonic() - self._began:5.1f} s[/]  {text}")

    def show(self, run: Run) -> None:
        """The run as it is now."""
        if self._live is not None:
            self._live.update(run_views.run_view(info_of(run)))
            return
        rows = events_of(run)
        for row in rows[self._told :]:
            self.tell(_brief(row))
        self._told = len(rows)


def _brief(row: RunEvent) -> str:
    """An event in a few words: its type, and what is told most by."""
    event = row.event
    words = [f"step {event['step']}"] if "step" in event else []
    words += [str(event[name]) for name in ("agent", "tool", "kind", "result", "verdict") if event.get(name)]
    return f"  [bold]{row.type:<14}[/] {output.escape(' '.join(words), 80)}"


def _print(found: dict[str, Any]) -> None:
    rows = []
    for step in found["steps"]:
        made = str(step["effects"]) if step["tool_effect"] != "pure" else "- (reads)"
        rows.append((str(step["step"]), step["tool"], step["tool_effect"], made, str(step["avoided"]), step["how"]))
    output.print_table(("step", "tool", "class", "effects made", "effects avoided", "how"), rows)
    output.say("run-completed, as an outside client consumed it:")
    output.say(f"  {output.escape(json.dumps(found['run_completed']))}\n")
    for name, held in found["checks"].items():
        output.say(f"  {'[green]✔[/]' if held else '[red]✘[/]'} {name}")
    output.say(
        f"\n  live state            [dim]{found['digests']['live']}[/]  folded here, record by record, meanwhile"
    )
    output.say(f"  rebuilt from topics   [dim]{found['digests']['rebuilt']}[/]  by a fresh process, from raw bytes")
    verdict = (
        "[bold green]nothing happened twice, nothing was lost[/]" if found["ok"] else "[bold red]it did not hold[/]"
    )
    output.say(f"\n{verdict} ({found['seconds']} s)" + (f"; data in {found['folder']}" if "folder" in found else ""))
    output.say(f"page of the run, open until now (`make demo STAY=1` keeps it): [bold]{found['page']}[/]")


def main() -> None:
    """Runs the demo; an expected error becomes words and an exit code, as it does in `refold`."""
    try:
        typer.run(demo)
    except expected() as error:
        if (code := report(error)) is None:
            raise
        sys.exit(code)


if __name__ == "__main__":
    main()
