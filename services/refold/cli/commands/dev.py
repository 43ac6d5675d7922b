"""`refold dev`: a whole platform on one folder, in the foreground, and its processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from hashlib import blake2b
from http.client import HTTPException
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any
from urllib.request import ProxyHandler, build_opener

from refold.cli import options, output
from refold.cli.apps import app_pools, load_app
from refold.cli.commands.provision import Provision, folder_of, people_of
from refold.cli.commands.schedule import apply_in_background
from refold.cli.platform import Printer, quiet
from refold.client.platform import listens
from refold.core.errors import NotFoundError, RefoldError, UsageError
from refold.core.redaction import public_url
from refold.dev.files import FolderLock, write_atomic
from refold.dev.process import logged
from refold.dev.stack import VIEWS_URL, DevStack, Listeners, Servers, ServiceProcess
from refold.dev.supervisor import Exit
from refold.engine.runtime.addresses import data_dir, on_loopback, running_dev
from refold.engine.runtime.settings import LIGHT
from refold.engine.runtime.standby import reserve_of


@dataclass(frozen=True)
class Layout:
    apart: Annotated[bool, "Run planner and executors in processes of their own, as large platforms do."] = False
    kafka: Annotated[str, "HOST:PORT", "Use this Kafka; start none."] = ""
    redis: Annotated[str, "URL", "Use this Redis; start none."] = ""
    postgres: Annotated[bool, "Start a Postgres for the views, in place of SQLite."] = False
    light: Annotated[bool, "Run one process without servers, to try things out; its data is one file."] = False


SERVES = dict.fromkeys(("approval", "gateway", "projections", "sources"), "service.started")
SERVES |= {"planner": "lane.live", "executor": "partition.assigned", "all": "lane.live"}
"""Log event of a service once it serves."""
MOST_GAP_S = 15.0
_SESSION = "REFOLD_GATEWAY__SESSION_KEY"
HELLO = "refold.cli.commands.hello:hello_app"
CODE_JSON = "code.json"
"""Lists the source files of the running code, in the data folder."""
# A process of its own: code that does not load, or hangs for a minute, leaves the running code alone.
_LOAD = "import signal, sys; signal.alarm(60); from refold.cli.commands.dev import print_code; print_code(sys.argv[1])"


def dev(
    app: Annotated[
        str, "App to serve: MODULE:APP or path/file.py[:APP].  \\[default: a hello app]", {"show_default": False}
    ] = HELLO,
    *,
    data: options.DataOption = "",
    fresh: Annotated[bool, "Delete all earlier runs first."] = False,
    policies: options.PoliciesOption = "",
    no_reload: Annotated[bool, "Keep the code as it was loaded, whatever becomes of the app's files."] = False,
    own: Layout,
) -> None:
    """Run a broker, Valkey and every service on this machine, each restarted when it dies."""
    quiet()
    os.umask(0o077)  # the logs and files of all that starts here hold arguments and results
    began = time.monotonic()
    named = os.environ.get(VIEWS_URL, "")
    if own.postgres and named:
        raise UsageError(f"{VIEWS_URL} names other views than --postgres", hint="leave one of them out")
    rules = Path(policies) if policies else folder_of(app)
    keys = data_dir(data).resolve() / "keys"
    # Of a Kafka that others reach, a key of this machine is no person's.
    people = people_of(rules, keys) if on_loopback(own.kafka or "localhost") else {}
    needs = Provision(_pools(app), keys, rules, few=True, people=people)
    if own.light:
        _run_light(app, data, needs, own, fresh=fresh)
        return
    stack = DevStack(
        data_dir(data),
        servers=Servers(own.kafka or None, own.redis or None, postgres=own.postgres),
        fresh=fresh,
        services=dev_services(
            app,
            needs,
            shared=own.postgres or named.startswith("postgres"),
            together=not own.apart,
            sources=bool(load_app(app).sources),
        ),
        prepare=needs.prepare,
        listeners=Listeners(output.progress(after_s=0), _print_exit, _print_trouble),
    )

    with stack:
        users = ["all", "planner", "executor", "approval", "sources"]
        users += ["projections", "gateway"] * bool(load_app(app).projections)

        def restart(schedules: bool) -> None:
            stack.supervisor.restart(users)
            if schedules:
                apply_in_background(app, stack.data_dir)

        watch, announced = CodeWatch(app, stack.data_dir, restart), False
        pages = "gateway" in stack.supervisor.pids()

        def turn() -> None:
            nonlocal announced, pages
            if not announced:
                announced = True
                _print_ready(stack, app, needs, watch.version)
                if load_app(app).schedules:
                    apply_in_background(app, stack.data_dir)
                    output.say("schedules       refold schedule list")
                output.say(f"[dim]ready after {time.monotonic() - began:.1f} s; Ctrl-C stops all of it[/]")
            if pages and has_pages(stack):
                pages = False
                output.say(f"pages     [bold]{stack.gateway}/[/]")
                output.say(f"API       {stack.gateway}/api/runs")
            if not no_reload:
                watch.look()

        stack.run_until_stopped(turn)
    output.say("stopped; the data is kept for the next start")


def _run_light(app: str, data: str, needs: Provision, own: Layout, *, fresh: bool) -> None:
    if own.apart or own.kafka or own.redis or own.postgres:
        raise UsageError("--light has no servers, and one process", hint="leave out the options that name others")
    env = ChainMap(*(dict(service.env) for service in dev_services(app, needs, together=True)))
    import_module("refold.cli.commands.light").run_light(app, data, needs, env, fresh=fresh)


def _pools(app: str) -> tuple[str, ...]:
    try:
        return app_pools(app)
    except UsageError as error:
        if near := get_close_matches(app, ("status", "kill")):
            raise UsageError(error.message, hint=f"did you mean `refold dev {near[0]}`?") from error
        raise


def dev_services(
    app: str, needs: Provision, *, shared: bool = False, together: bool = False, sources: bool = False
) -> list[ServiceProcess]:
    """A planner, an approval service, executors per pool, and services of the views; `shared` if in Postgres.
    `together`: planner and executors are one process, called `all`."""

    def service(name: str, *more: str, **env: str) -> ServiceProcess:
        first = name in ("all", "planner", "executor")
        argv = (sys.executable, "-m", "refold", "serve", name, *["--standby"] * first, "--app", app, *more)
        serves = SERVES[name] if first else ""
        return ServiceProcess(name, argv, {"REFOLD_TRUST": f"@{needs.file('trust')}", **env}, serves)

    sealing = {"REFOLD_EXECUTOR__LEDGER_KEY": str(needs.file("ledger"))}
    # Forms of open pages hold when the gateway is started again.
    session = os.environ.get(_SESSION) or token_hex(32)
    acting = {"REFOLD_GATEWAY__PEOPLE": json.dumps(dict(needs.people)), _SESSION: session}
    views = [service("gateway", "--data", str(needs.keys.parent), **acting)] if is_installed("fastapi") else []
    if is_installed("sqlalchemy") and (shared or not views):  # a gateway keeps views in SQLite itself
        views.insert(0, service("projections"))
    if sources:
        views.append(service("sources"))
    approval = service("approval", "--key", str(needs.file("decision")))
    if together:
        return [service("all", **sealing), approval, *views]
    executors = [service("executor", "--pool", pool, **sealing) for pool in needs.pools]
    return [service("planner"), approval, *executors, *views]


def has_pages(stack: DevStack) -> bool:
    """True once the gateway answers /readyz with 200."""
    with suppress(OSError, HTTPException):  # a proxy of the environment does not reach this machine
        return bool(build_opener(ProxyHandler({})).open(f"{stack.gateway}/readyz", timeout=1).status == 200)
    return False


def is_installed(module: str) -> bool:
    return find_spec(module) is not None


def _print_exit(gone: Exit) -> None:
    how = f"was ended by {signal.Signals(-gone.code).name}" if gone.code < 0 else f"ended with {gone.code}"
    pause = gone.pause.total_seconds()
    again = f"again in {pause:g} s" if pause else "again"
    with suppress(OSError):  # no reader, or no space left: no reason to stop
        output.say(f"[yellow]{gone.name} {gone.pid} {how}; starting it {again}[/]")


def _print_trouble(text: str) -> None:
    with suppress(OSError):
        output.warn(text)


def _print_ready(stack: DevStack, app: str, needs: Provision, code: str) -> None:
    pids = stack.supervisor.pids()
    output.say(f"Kafka     [bold]{stack.kafka}[/]")
    output.say(f"Redis     [bold]{output.escape(public_url(stack.redis))}[/]")
    if is_installed("sqlalchemy"):
        output.say(f"views     [bold]{output.escape(stack.views_shown)}[/]")
    output.say(f"app       {output.escape(app)}, code {code}")
    if not load_app(app).agents:
        output.warn("the app has no agents: import the modules that define them in its file")
    where = str(needs.policies) if needs.policies else 'the default: only tools with approval="required" ask'
    output.say(f"policy    {output.escape(where)}")
    for name, numbers in pids.items():
        note = "  [dim]planner and executors; --apart gives each its own process[/]" * (name == "all")
        output.say(f"{name:<9} {', '.join(map(str, numbers))}{note}")
    output.say(f"[dim]{output.escape(str(stack.dev_json))} is kept up to date with all of this[/]\n")
    agent, option = ("hello", """ --input '{"name": "Ada"}'""") if app == HELLO else ("AGENT", " --input '{...}'")
    output.say(f"start a run     refold run start {agent}{option} --wait")
    if pids.get("executor") or pids.get("all"):
        output.say("kill a service  refold dev kill executor")


ROLES_KILLED = ("planner", "executor", "approval", "projections", "gateway", "sources", "broker", "valkey", "postgres")


@dataclass(frozen=True)
class DevOptions(Printer):
    data: options.DataOption = ""

    def running(self) -> dict[str, Any]:
        """Content of dev.json. **Raises** NotFoundError if no process holds the folder."""
        content = running_dev(self.data)
        # Without the lock, its pids may belong to other programs.
        if not content or not FolderLock(data_dir(self.data) / "lock").is_held():
            raise NotFoundError(f"no `refold dev` runs on {data_dir(self.data)}", hint="`refold dev`, or --data FOLDER")
        return content


def status(*, beside: DevOptions) -> None:
    """Show the processes of a running `refold dev`."""
    content = beside.running()
    addresses = [
        {"name": name, "address": address, "answers": _listens(address)}
        for name, address in (("kafka", content["kafka"]), ("redis", content["redis"]))
        if address
    ]
    restarts = content.get("restarts", {})
    processes = [
        {"role": role, "number": number, "pid": pid, "state": state_of(pid), "restarts": restarts.get(role, 0)}
        for role, pids in content["processes"].items()
        for number, pid in enumerate(pids or [0], start=1)
    ]

    def in_words() -> None:
        for server in addresses:
            answers = "[green]listens[/]" if server["answers"] else "[red]nobody listens[/]"
            output.say(f"{server['name']:<9} {output.escape(server['address'])}  {answers}")
        output.print_rows(processes, ("role", "number", "pid", "state", "restarts"), "no processes")

    beside.print({"addresses": addresses, "processes": processes}, in_words)


def _listens(address: str) -> bool:
    return listens(address if address.startswith(LIGHT) else address.rpartition("//")[2].partition("/")[0])


def kill_processes(
    role: Annotated[str, f"One of {', '.join(ROLES_KILLED)}."] = "",
    number: Annotated[int, "N", "Number of the process in its role, as `refold dev status` prints it."] = 1,
    *,
    all_: Annotated[bool, "All processes of the role, or of every role."] = False,
    no_wait: Annotated[bool, "Return without waiting for the replacement."] = False,
    beside: DevOptions,
) -> None:
    """Kill processes of a running `refold dev` by SIGKILL, and print how long the role was down."""
    if role not in (*ROLES_KILLED, "") or not (role or all_):
        raise UsageError(f"{role!r} is no role", hint=f"name one of {', '.join(ROLES_KILLED)}, or --all")
    running = beside.running()["processes"]
    processes = [(name, pid) for name in ([role] if role else ROLES_KILLED) for pid in running.get(name, [])]
    victims = processes if all_ else processes[number - 1 : number] * (number > 0)
    if not victims:
        hint = "`refold dev status` shows them; one that has just died has no process for a moment"
        raise NotFoundError(f"there is no {role or 'process'} {'' if all_ else number}".rstrip(), hint=hint)
    code = running_code(data_dir(beside.data))
    together = ("planner", "executor") if running.get("planner") == running.get("executor") else ()
    rows = _kill(victims, data_dir(beside.data) / "logs", wait=not no_wait, together=together)
    rows = [row | {"code": code if row["role"] in SERVES else ""} for row in rows]
    beside.print(rows, "\n".join(_killed_text(row, together) for row in rows))


def _kill(victims: list[tuple[str, int]], logs: Path, *, wait: bool, together: Sequence[str]) -> list[dict[str, Any]]:
    """Kill processes; return each with its outage in ms, or None. Roles `together` are one process."""
    files = {name: logs / f"{_service(name, together)}.log" for name, _ in victims if name in SERVES and wait}
    read, died = {name: file.stat().st_size for name, file in files.items() if file.exists()}, datetime.now(UTC)
    for _, pid in victims:
        with suppress(ProcessLookupError):
            # With the process that stands by for it: a fork has the hash seed of its parent, and so the order of sets,
            # which the process of another machine or of the next start has not.
            os.kill(reserve_of(pid), signal.SIGKILL)
    gaps = {name: _gap_ms(SERVES[_service(name, together)], files[name], at, died) for name, at in read.items()}
    return [{"role": name, "pid": pid, "gap_ms": gaps.get(name)} for name, pid in victims]


def _service(role: str, together: Sequence[str]) -> str:
    return "all" if role in together else role


def _killed_text(row: Mapping[str, Any], together: Sequence[str]) -> str:
    gap = row["gap_ms"]
    then = "`refold dev status` shows its successor" if gap is None else f"its successor served after {gap} ms"
    code = f" with code {row['code']}" if row["code"] else ""
    role = " and ".join(together) if row["role"] in together else row["role"]
    return f"killed [bold]{role} {row['pid']}[/] (SIGKILL); {then}{code}"


def _gap_ms(serves: str, log: Path, read: int, died: datetime) -> int | None:
    """Outage of a killed role, from its death to its successor's event in `log`, in ms; None after MOST_GAP_S."""
    until = time.monotonic() + MOST_GAP_S
    while time.monotonic() < until:
        if served := logged(log, serves, read):
            gap_s = (datetime.fromisoformat(json.loads(served)["timestamp"]) - died).total_seconds()
            return max(0, round(gap_s * 1000))
        time.sleep(0.02)
    return None


def state_of(pid: int) -> str:
    """State of a process: running, stopped (SIGSTOP), gone, or being started again."""
    if not pid:
        return "being started again"
    if sys.platform != "linux":
        return "running"
    try:
        # The name, in parentheses, may contain spaces and parentheses.
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
    return {"T": "stopped", "t": "stopped", "Z": "gone"}.get(letter, "running")


def code_of(app: str) -> list[str]:
    """Load an app; return the sorted files that it imports from its own folder."""
    load_app(app)
    place = app.rpartition(":")[0] if ":" in app else app
    own = Path(place if place.endswith(".py") else sys.modules[place].__file__ or "").resolve()
    files = {own, *(Path(getattr(module, "__file__", None) or "/").resolve() for module in [*sys.modules.values()])}
    return sorted(str(path) for path in files if path.is_relative_to(own.parent) and "site-packages" not in path.parts)


def print_code(app: str) -> None:
    """Print the files and pools of an app as JSON, and whether it has schedules; or only the error."""
    try:
        files, loaded = code_of(app), load_app(app)
        print(json.dumps([files, loaded.pools, bool(loaded.schedules)]))  # noqa: T201 - for the process that watches
    except RefoldError as error:
        print(json.dumps([error.message]))  # noqa: T201


def version_of(files: Sequence[str]) -> str:
    return blake2b(b"".join(path.read_bytes() for path in map(Path, files) if path.exists()), digest_size=4).hexdigest()


def running_code(data: Path) -> str:
    """Code version of a service that starts now; empty without a `refold dev`."""
    with suppress(OSError, ValueError):
        return version_of(json.loads((data / CODE_JSON).read_text()))
    return ""


class CodeWatch:
    """Watches an app's files, and calls `restart` after a change that loads; its argument: the app has schedules."""

    def __init__(self, app: str, data: Path, restart: Callable[[bool], None]) -> None:
        self._app, self._data, self._restart = app, data, restart
        self._take(code_of(app))
        self._current = self._loaded = self._times()

    def _take(self, files: list[str]) -> None:
        self._files, self.version = files, version_of(files)
        write_atomic(self._data / CODE_JSON, json.dumps(files))

    def _times(self) -> dict[str, int]:
        """Modification times in ns, by path, of all Python files in the folders of the loaded ones."""
        beside = (path for folder in {Path(file).parent for file in self._files} for path in folder.glob("*.py"))
        return {str(path): path.stat().st_mtime_ns for path in beside if path.exists()}

    def look(self) -> None:
        """Call `restart` once changed files are the same in two calls and load; warn if they do not load."""
        before, self._current = self._current, self._times()
        if self._current != before or self._current == self._loaded:
            return
        self._loaded, old = self._current, self.version
        run = subprocess.run([sys.executable, "-c", _LOAD, self._app], capture_output=True, text=True, check=False)
        files, *facts = json.loads((run.stdout.splitlines() or [json.dumps([run.stderr[-500:]])])[-1])
        if not facts:
            output.warn(f"code {old} goes on: {files}")
        elif version_of(files) != old:
            self._take(files)
            if new := sorted({*facts[0]} - {*load_app(self._app).pools}):
                output.warn(f"nothing serves the new pool {new[0]}: start `refold dev` again")
            output.say(f"{output.escape(self._app)} changed: code [bold]{self.version}[/] in place of {old}")
            self._restart(facts[1])
