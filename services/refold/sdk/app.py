"""An app: tools and agents that belong together, found by name."""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import cache, cached_property, partial
from hashlib import blake2b
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast, overload

from pydantic import ValidationError

from refold.core.approval.condition import Condition, Language
from refold.core.errors import UsageError
from refold.core.events import Spendable
from refold.core.ids import run_id
from refold.core.planning.verdict import AppFacts
from refold.core.redaction import redacted
from refold.core.run.account import Reserve
from refold.core.run.intents import SCHEDULE_AGENT
from refold.core.run.replay import Moment
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.sdk.agent import INSTRUMENTED, AgentDef
from refold.sdk.budget import Budget, Limit, checked_reserve, windows_of
from refold.sdk.context import NO_HISTORY, Context
from refold.sdk.determinism import scan
from refold.sdk.memory import MemoryAgent, WholeCall
from refold.sdk.plan import plan as plan_agent
from refold.sdk.prices import Price, Prices
from refold.sdk.projection import Projection
from refold.sdk.records import Mapped, RecordSource, SourceRecord
from refold.sdk.retry import Retry
from refold.sdk.schedule import Schedule, ScheduleOptions, schedule
from refold.sdk.secret import Provider, from_environment
from refold.sdk.source import spoken
from refold.sdk.sources import ToolSource, ToolTable
from refold.sdk.tool import ToolDef, ToolOptions

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
P = TypeVar("P", bound=type[Projection])
M = TypeVar("M", bound=Callable[[SourceRecord], Mapped])

ADAPTERS = "refold.agents"
"""Group of entry points: adapters for agents, by their framework."""

_DIGEST = re.compile(r"[0-9a-f]{16}")

MODEL_POOL = "model"

_OF_EVENTS = Language({"event": "string: what the event is called", "data": "dyn: its data, any JSON value"})


class Listener:
    """Agent to run for a published `event` with `match`, a condition on `data` and `event`. **Raises** UsageError."""

    def __init__(self, event: str, match: str, agent: str) -> None:
        self.event, self.agent = event, agent
        try:
            self._condition = Condition(match, _OF_EVENTS) if match else None
        except UsageError as error:
            raise UsageError(f"the match of event {event!r}: {error.message}", hint=error.hint) from None

    def fits(self, event: str, data: Callable[[], Any]) -> bool:
        """True if the agent runs for the event; False if its condition has no value."""
        if event != self.event:
            return False
        return self._condition is None or self._condition.value({"event": event, "data": data()}) is True


class AgentOptions(TypedDict, total=False):
    """Options of `@app.agent(...)`; see `AgentDef`, and for the last four `MemoryAgent`."""

    name: str
    version: str
    retention: timedelta | None
    budget: Budget | None
    durability: Literal["log", "memory"]
    timeout: timedelta
    retry: Retry
    pool: str
    reserve: Reserve


class App:
    """The registry that a planner and its executors share.

    `agents` serve new runs. `version` is recorded in runs that begin in this app; by default it is a digest of the code
    of its agents and tools. `plan=True` adds the agent `plan`: with the right to start runs, every tool can then be
    called with any arguments. `secrets` gives executors the value of a `Secret` by its name. `redact` gets the text of
    a tool's exception, up to 20,000 characters, and returns the text for the log. `prices` of models, by
    `provider:name`, precede `genai-prices`. `limits` bound all runs of a day or a month.

    **Example**

    >>> app = App("greetings")
    >>> @app.tool(effect="pure")
    ... def greet(name: str) -> str:
    ...     return f"Hello {name}"
    >>> greet("Ada"), app.tools["greet"].canonical_args("Ada")
    ('Hello Ada', '{"name":"Ada"}')
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "",
        plan: bool = False,
        secrets: Provider = from_environment,
        redact: Callable[[str], str] = redacted,
        prices: Mapping[str, Price] | None = None,
        limits: Iterable[Limit] = (),
    ) -> None:
        self.name, self.prices = name, Prices(prices or {})
        self.secrets, self.redact, self.windows = secrets, redact, windows_of(limits)
        self._declared = version
        self.tools = ToolTable()
        self.agents: dict[str, AgentDef] = {}
        if plan:
            self.agents["plan"] = AgentDef(cast(FunctionType, plan_agent))
        self._older: dict[str, list[AgentDef]] = {}
        self._by_function: dict[Callable[..., Any], ToolDef] = {}
        self._agent_by_function: dict[Callable[..., Any], AgentDef] = {}
        self._listeners: list[Listener] = []
        self.projections: dict[str, type[Projection]] = {}
        self.schedules: dict[str, Schedule] = {}
        self.sources: dict[str, RecordSource] = {}

    @staticmethod
    def load(target: str) -> "App":
        """Return the app at `package.module:app` or `path/file.py:app`; without `:app`, the only one there.

        **Raises** UsageError with the places searched and the apps found.
        """
        place, colon, name = target.rpartition(":")
        if not colon or "/" in name or "\\" in name:
            place, name = target, ""
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
        matches = {key: candidate for key, candidate in vars(module).items() if isinstance(candidate, App)}
        if name and name not in matches:
            raise UsageError(f"{place} has no App named {name}", hint=f"there is {_names_in_words(matches)}")
        if not name and len({id(candidate) for candidate in matches.values()}) != 1:
            raise UsageError(f"which App of {place}?", hint=f"write {place}:NAME; there is {_names_in_words(matches)}")
        return matches[name] if name else next(iter(matches.values()))

    @property
    def pools(self) -> tuple[str, ...]:
        return tuple(sorted({"default", *(tool.pool for tool in self.tools.values())}))

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: F | None = None, /, **options: Unpack[ToolOptions]) -> F | Callable[[F], F]:
        """Make a function a tool: `@app.tool`, or `@app.tool(effect="keyed", timeout=...)`; see `ToolDef`.

        The function itself stays callable, for tests.
        """

        def register_tool(body: F) -> F:
            self._by_function[body] = self.add_tool(ToolDef(cast(FunctionType, body), **options))
            scan.mark_tool(cast(FunctionType, body))
            return body

        return register_tool if function is None else register_tool(function)

    def projection(self, projection: P, /) -> P:
        """Have `refold serve projections` fill the tables of a class: `@app.projection`; see `Projection`.

        **Raises** UsageError if the app has a projection or table of the same name.
        """
        owners = {name: other.name for other in self.projections.values() for name in other.names()}
        for name in projection.names() & owners.keys():
            raise UsageError(f"projections {owners[name]} and {projection.name} both have the name {name}")
        self.projections[projection.name] = projection
        return projection

    def include(self, source: ToolSource) -> None:
        """Add the tools of a source: `app.include(MCPServer("files", command=["files-server"]))`.

        **Raises** UsageError if the app has a tool of such a name.
        """
        clashes = [name for name in self.tools if name.startswith(source.prefix)]
        clashes += [other.prefix for other in self.tools.sources if other.prefix == source.prefix]
        if clashes:
            raise UsageError(f"app {self.name} has {clashes[0]} already", hint="give the source another name")
        for tool in source.declared():
            self.add_tool(tool)
        self.tools.sources.append(source)

    @overload
    def agent(self, function: T, /) -> T: ...
    @overload
    def agent(self, /, **options: Unpack[AgentOptions]) -> Callable[[F], F]: ...
    def agent(self, function: Any = None, /, **options: Unpack[AgentOptions]) -> Any:
        """Make an async function an agent: `@app.agent`, or `@app.agent(name="...")`; see `AgentDef`.

        One name may have several versions, `@app.agent(name="ship", version="2")`: new runs get the last registered, a
        run that began goes on with its own. With `durability="memory"` all of it is one `pure` call, see `MemoryAgent`.
        An agent of pydantic-ai is taken as it is, `app.agent(support)`: see `refold.contrib.pydantic_ai.durable`.
        """
        framework = type(function).__module__.partition(".")[0]
        adapters = () if function is None or callable(function) else entry_points(group=ADAPTERS, name=framework)
        if adapter := next(iter(adapters), None):
            adapter.load()(self, function)
            return function

        def register_agent(body: F) -> F:
            registered = self.add_agent(self._make_agent(cast(FunctionType, body), options))
            if isinstance(registered, MemoryAgent):
                self.tools[registered.tool.name] = self._by_function[registered.tool.function] = registered.tool
            self._agent_by_function[body] = registered
            return body

        return register_agent if function is None else register_agent(function)

    def add_tool(self, tool: ToolDef) -> ToolDef:
        """Register a tool that is no decorated function. **Raises** UsageError if its name is taken."""
        if tool.name in self.tools:
            raise UsageError(f"app {self.name} has two tools {tool.name}", hint="rename one, or give it name=")
        self.tools[tool.name] = tool
        return tool

    def add_agent(self, agent: AgentDef) -> AgentDef:
        """Register an undecorated agent. **Raises** UsageError if its name is taken, unless each has a version."""
        if earlier := self.agents.get(agent.name):
            self._keep_version(earlier, agent)
        self.agents[agent.name] = agent
        return agent

    def _make_agent(self, body: FunctionType, options: AgentOptions) -> AgentDef:
        own: dict[str, Any] = {name: options.get(name) for name in ("retention", "budget")}
        own |= {name: options.get(name, "") for name in ("name", "version")}
        durability = options.get("durability", "log")
        if durability == "memory":
            reserve = checked_reserve(options["reserve"]) if "reserve" in options else None
            whole = WholeCall(options.get("timeout"), options.get("retry"), options.get("pool", "default"), reserve)
            return MemoryAgent(body, self.tools.values, whole, **own)
        if durability != "log":
            raise UsageError(f"durability={durability!r} is unknown", hint="use log or memory")
        if of_memory := ", ".join(sorted(options.keys() & {"timeout", "retry", "pool", "reserve"})):
            raise UsageError(f"{of_memory}= is for durability='memory'", hint="each call has its tool's own")
        return AgentDef(body, **own)

    @cached_property
    def version(self) -> str:
        """The declared version, else a digest of the code of its agents and tools."""
        agents = [agent for name in sorted(self.agents) for agent in (*self._older.get(name, ()), self.agents[name])]
        codes = [agent.code for agent in agents] + [self.tools[name].version for name in sorted(self.tools)]
        return self._declared or blake2b(" ".join(codes).encode(), digest_size=8).hexdigest()

    def versions(self, name: str) -> dict[str, AgentDef]:
        """Return the versions of an agent by name, the newest last."""
        last = self.agents.get(name)
        return {spoken(agent.version)[0]: agent for agent in (*self._older.get(name, ()), *([last] if last else ()))}

    def agent_of(self, name: str, version: str) -> AgentDef | None:
        """Return the agent of the version that a run began with; None if that is not registered.

        Code without a declared version takes runs of any undeclared version: a comparison with the history decides
        whether they agree.
        """
        newest = self.agents.get(name)
        if newest is None or not version or newest.version == version:
            return newest
        called = spoken(version)[0]
        if agent := self.versions(name).get(called):
            return agent
        # A name is never guessed: code that agrees so far may leave out a step that the run's own code would make.
        return newest if not newest.declared and _DIGEST.fullmatch(called) else None

    def manifest(self, name: str, version: str = "") -> dict[str, str]:
        """Return the manifest of a run: digests of code and tools, and their foundation."""
        agent = self.versions(name).get(version) or self.agents[name]
        facts = " ".join(f"{tool}:{self.tools[tool].facts.schema}" for tool in sorted(self.tools))
        tools = blake2b(facts.encode(), digest_size=8).hexdigest()
        bounds = [agent.budget.limits] if agent.budget else []
        bounds += [limit.limits for limit in self.windows if limit.agent in ("", name)]
        prices = {"prices": self.prices.version} if any(limit.nano_usd for limit in bounds) else {}
        spans = {INSTRUMENTED: "yes"} if agent.instrumented else {}
        return {"code": agent.code, "tools": tools, **agent.definition, **prices, **spans, **spoken(agent.version)[1]}

    @property
    def budgets(self) -> dict[str, Spendable]:
        return {name: agent.budget.limits for name, agent in self.agents.items() if agent.budget}

    @property
    def meters(self) -> bool:
        """True if a tool is in the pool `model`: then its planner loads the prices of models."""
        return any(tool.pool == MODEL_POOL for tool in self.tools.values())

    def _keep_version(self, earlier: AgentDef, agent: AgentDef) -> None:
        """Keep the `earlier` agent of a name for its runs. **Raises** UsageError without distinct declared versions."""
        older = self._older.setdefault(earlier.name, [])
        versions = {other.declared for other in (*older, earlier)}
        if not agent.declared or "" in versions or agent.declared in versions:
            hint = 'rename one, or give each of them its version="..."'
            raise UsageError(f"app {self.name} has two agents {agent.name}", hint=hint)
        older.append(earlier)

    def on(self, event: str, *, match: str = "") -> Callable[[F], F]:
        """Run an agent whenever another agent publishes this event: `@app.on("order.paid")`.

        Its input is the data of the event. `match` is a condition in CEL over `data` and `event`, as in
        `match="data.amount > 100"`; without a value for the event it does not match.
        """

        def register_listener(body: F) -> F:
            if body not in self._agent_by_function:
                self.agent(body)
            self._listeners.append(Listener(event, match, self._agent_by_function[body].name))
            return body

        return register_listener

    def every(self, name: str, agent: Callable[..., Any] | str, **options: Unpack[ScheduleOptions]) -> None:
        """Run an agent on a schedule: `app.every("nightly", report, cron="15 2 * * *", zone="Europe/Berlin")`.

        For the options see `Schedule`. `refold schedule apply` begins it, as `refold dev` does. **Raises** UsageError.
        """
        callee = self.find_agent(agent)
        callee.input_json(options.get("input"))
        if name in self.schedules:
            raise UsageError(f"app {self.name} has two schedules {name}", hint="rename one")
        try:
            self.schedules[run_id(name)] = Schedule(agent=callee.name, **options)
        except ValidationError as error:
            reasons = "; ".join(f"{'.'.join(map(str, each['loc']))} {each['msg']}" for each in error.errors())
            raise UsageError(f"schedule {name}: {reasons.strip()}") from None
        if SCHEDULE_AGENT not in self.agents:
            self.add_agent(AgentDef(cast(FunctionType, schedule), name=SCHEDULE_AGENT, version="1", portable=True))

    def source(self, topic: str, *, group: str, value: Literal["json", "bytes"] = "json") -> Callable[[M], M]:
        """Map the records of a topic of another system: `@app.source("orders", group="refold-orders")`.

        `refold serve sources` calls the function with each `SourceRecord`, again after a crash; it returns `NewRun`,
        `NewSignal` or None. **Raises** UsageError if the app has a source of this topic.
        """

        def register_source(body: M) -> M:
            if topic in self.sources:
                raise UsageError(f"app {self.name} has two sources of {topic}", hint="map its records in one function")
            self.sources[topic] = RecordSource(topic, group, value, body, self.find_agent)
            return body

        return register_source

    def listeners(self, event: str, data: str) -> list[str]:
        """Names of the agents to run for a published event; `data` is its JSON."""
        read = cache(partial(canonical.parse, data))
        return [listener.agent for listener in self._listeners if listener.fits(event, read)]

    def find_agent(self, agent: Callable[..., Any] | str) -> AgentDef:
        """Return the agent of a function or a name. **Raises** UsageError if there is none."""
        declared = self.agents.get(agent) if isinstance(agent, str) else self._agent_by_function.get(agent)
        if declared is None:
            raise self._missing_error("agent", agent, self.agents)
        return declared

    def staged(self, doubles: Mapping[str, ToolDef], secrets: Provider) -> "App":
        """Return the same app with doubles of some tools and made-up secrets, for a test."""
        stage = App(self.name, secrets=secrets, redact=self.redact, prices=self.prices.own)
        stage.tools = ToolTable({**self.tools, **doubles}, self.tools.sources)
        stage._by_function = {function: stage.tools[tool.name] for function, tool in self._by_function.items()}
        stage.agents, stage._agent_by_function = self.agents, self._agent_by_function
        return stage

    def facts(self) -> AppFacts:
        """Facts of the app for planners. Loads the prices of models first if a tool needs them: that takes a second."""
        if self.meters:
            self.prices.load()
        versions = {name: agent.version for name, agent in self.agents.items()}
        manifests = {name: self.manifest(name) for name in self.agents}
        checks = self.read_result, self.fit_args
        return AppFacts(self.version, versions, manifests, *checks, self.budgets, self.windows, self.prices.of)

    def read_result(self, tool: str, result: str) -> Any:
        """Return the value of a tool's result (JSON). **Raises** UsageError for another type."""
        return self.find(tool).result.load(result)

    def context(self, run_id: str, *, seed: str, moment: Moment, history: RunState = NO_HISTORY) -> Context:
        return Context(run_id, seed=seed, moment=moment, find=self.find, find_agent=self.find_agent, history=history)

    def fit_args(self, tool: str, args: str) -> str:
        """Return a tool's arguments (JSON) in canonical form. **Raises** UsageError if they do not fit."""
        return self.find(tool).canonical_args(**canonical.parse(args))

    def find(self, tool: Callable[..., Any] | str) -> ToolDef:
        """Return the tool of a function or a name. **Raises** UsageError if there is none."""
        declared = self.tools.get(tool) if isinstance(tool, str) else self._by_function.get(tool)
        if declared is None:
            raise self._missing_error("tool", tool, self.tools)
        return declared

    def _missing_error(self, kind: str, wanted: Callable[..., Any] | str, declared: Iterable[str]) -> UsageError:
        name = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", repr(wanted))
        hint = f"put @app.{kind} on it; there is {', '.join(sorted(declared)) or 'none yet'}"
        return UsageError(f"app {self.name} has no {kind} {name}", hint=hint)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint="give the path of a Python file, or package.module:app")
    path = path.resolve()
    names = _module_names(path)
    # Without a package, `sys`: `import_module` refuses an empty name.
    with suppress(ImportError):  # its package may load it
        importlib.import_module(names[0].rpartition(".")[0] or "sys")
    for loaded in map(sys.modules.get, names):
        if loaded is not None and Path(loaded.__file__ or "").resolve() == path:
            return loaded
    names = [name for name in names if name not in sys.modules] or [f"refold_app_{path.stem}"]
    return _execute_file(path, names)


def _execute_file(path: Path, names: list[str]) -> ModuleType:
    spec = importlib.util.spec_from_file_location(names[0], path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file", hint="give one whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    # Before it runs: modules that it imports may import it, and would run it again.
    sys.modules.update(dict.fromkeys(names, module))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for name in names:
            sys.modules.pop(name, None)
        raise
    return module


def _module_names(path: Path) -> list[str]:
    """Module names by which an app or its subprocesses may import its file."""
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    # `python file.py` sets `sys.path` like this.
    for folder in (root, path.parent):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    places = [root, *(Path(place).resolve() for place in sys.path)]
    parts = [path.relative_to(place).with_suffix("").parts for place in places if path.is_relative_to(place)]
    # All have to mean one module.
    return list(dict.fromkeys(".".join(module) for module in parts))


def _load_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it needs is not
        raise UsageError(f"there is no module {name}", hint="give package.module:app or path/file.py") from error


def _names_in_words(names: dict[str, App]) -> str:
    return ", ".join(sorted(names)) or "none"
