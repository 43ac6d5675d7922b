"""A tool: a typed function that acts on the world."""

import asyncio
import copy
import inspect
import re
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import cached_property, partial
from types import FunctionType
from typing import Any, ClassVar, Final, Literal, TypedDict, get_args

from refold.core import errors
from refold.core.approval.decision import ToolFacts, schema_name
from refold.core.errors import UsageError
from refold.core.events import CallCompleted, CallFailed, RetryPolicy
from refold.core.run.account import Reserve, dollars
from refold.core.run.intents import Call
from refold.core.run.state import Settled
from refold.core.wire import canonical
from refold.sdk.heartbeat import Heartbeat
from refold.sdk.json_codec import Arguments, JsonCodec, hints
from refold.sdk.retry import Retry, milliseconds
from refold.sdk.secret import Secrets
from refold.sdk.source import code_version

EffectClass = Literal["pure", "keyed", "probed", "once"]
ApprovalNeed = Literal["policy", "required"]
ShownAs = Literal["arguments", "edit"]
KeyedBy = Literal["key", "arguments"]
_CHOICES = {
    "effect": (EffectClass, "use pure, keyed, probed or once"),
    "approval": (ApprovalNeed, "use policy or required"),
    "shown_as": (ShownAs, "use arguments or edit"),
    "keyed_by": (KeyedBy, "use key or arguments"),
}
Body = Coroutine[Any, Any, Any] | Callable[[], Any]

FILLED: Final = ("idempotency_key", "heartbeat")
"""Parameters that the executor fills, for functions that take them."""

_KEY = FILLED[0]
NATURAL: Final = "where equal arguments again change nothing more, declare keyed_by='arguments'"

EarlierCalls = Callable[[], Mapping[int, tuple[str, str]]]
"""Loader of the calls on which a call builds: arguments and result in JSON by step. Large ones may take a while."""

_WORDS_OF_CALL = ("retry", "timeout")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_POOL = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")


class _DidNotHappen:
    def __repr__(self) -> str:
        return "DID_NOT_HAPPEN"


DID_NOT_HAPPEN: Final = _DidNotHappen()
"""Result of a probe if the effect provably did not happen."""


class CallOptions(TypedDict, total=False):
    """Options of a call, as of `ToolDef`. A tool without any is `once`, in the pool `default`."""

    effect: EffectClass
    pool: str
    timeout: timedelta
    retry: Retry
    approval: ApprovalNeed
    keyed_by: KeyedBy
    key_window: timedelta | None
    lease: timedelta | None
    version: str
    tags: Collection[str]


class ToolOptions(CallOptions, total=False):
    """Options of `@app.tool(...)`; see `ToolDef`."""

    name: str
    probe: Callable[..., Any] | None
    shown_as: ShownAs
    cost: Decimal | str | int


@dataclass(eq=False)
class ToolDef:
    """A decorated tool.

    `effect` decides on attempts after an unknown outcome (`once`, unless declared otherwise: none). `pool` names the
    executors that run it. `timeout` is for one attempt; effects begun by then have an unknown outcome. The receiver of
    a `keyed` tool recognises a repetition by the `idempotency_key` that the function takes, or, with
    `keyed_by="arguments"`, by the arguments: equal ones again change nothing more (set a value, delete a row).
    `key_window` is the time that it remembers a key (None: for ever). `lease` is the time that an executor may be
    silent before another takes over (None: the executor's setting). `version` changes with the code.
    `approval="required"`: no executor runs it without a decision for the very call; else the policy decides. `tags` are
    words for the rules of policies. `shown_as="edit"`: people see the difference between its texts `before` and
    `after`, so it has to refuse when `before` is not the present text. `cost` is each attempt's part of a budget, in
    dollars (a text or a Decimal).

    `probe` is the status hook of a `probed` tool: it gets `idempotency_key` and the arguments that it names, and
    returns the tool's result if the effect happened or `DID_NOT_HAPPEN` if it provably did not. Anything else, an
    exception or a result of another type, leaves the outcome unknown, and a human decides.
    """

    pattern: ClassVar[re.Pattern[str]] = _NAME

    function: FunctionType
    name: str = ""
    effect: EffectClass = "once"
    pool: str = "default"
    timeout: timedelta = timedelta(minutes=1)
    retry: Retry = field(default_factory=Retry)
    key_window: timedelta | None = None
    lease: timedelta | None = None
    version: str = ""
    probe: Callable[..., Any] | None = None
    approval: ApprovalNeed = "policy"
    tags: Collection[str] = ()
    shown_as: ShownAs = "arguments"
    cost: Decimal | str | int = 0
    keyed_by: KeyedBy = "key"

    def __post_init__(self) -> None:
        if not isinstance(self.function, FunctionType):
            raise UsageError(f"{self.function!r} is not a function", hint="put @app.tool on a def or an async def")
        self.name = self.name or self.function.__name__
        self.description = inspect.getdoc(self.function) or ""
        tool = f"tool {self.name}"
        self._check_options(tool)
        _refuse_untyped(self.function, tool)
        self.arguments = Arguments(self.function, tool, leave=FILLED)
        self._check_names(tool)
        shape = self.arguments.shape
        self._means = None if shape.form.plain else shape.means
        self.result = JsonCodec(hints(self.function, tool)["return"], f"the result of {tool}")
        self._body = _Function(self.function, self.arguments.names, tool)
        self._probe = _Function(self.probe, self.arguments.names, f"probe of {tool}") if self.probe else None
        self.timeout_ms = milliseconds(self.timeout, f"{tool}: timeout")
        self.key_window_ms = milliseconds(self.key_window, f"{tool}: key_window") if self.key_window else 0
        self.lease_ms = milliseconds(self.lease, f"{tool}: lease") if self.lease else 0
        cost = dollars(self.cost, f"{tool}: cost")
        self.reserve = Reserve(usd=cost) if cost else None
        self.policy: RetryPolicy = self.retry.policy
        self.version = self.version or code_version([self.function])

    @cached_property
    def facts(self) -> ToolFacts:
        schema = schema_name(canonical.dumps(self.schema()), edit=self.shown_as == "edit")
        needed = self.approval == "required"
        tags = tuple(sorted(self.tags))
        return ToolFacts(self.name, self.version, schema, self.effect, tags, needed, self.key_window_ms, self.pool)

    def canonical_args(self, /, *args: Any, **kwargs: Any) -> str:
        """Return the arguments of a call as canonical JSON by parameter name. **Raises** UsageError."""
        return self.arguments.canonical(args, kwargs)

    def call(
        self,
        args: str,
        *,
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        label: str = "",
        builds_on: tuple[int, ...] = (),
        reserve: Reserve | None = None,
    ) -> Call:
        return Call(
            tool=self.name,
            args=args,
            pool=self.pool,
            effect=self.effect,
            timeout_ms=self.timeout_ms if timeout is None else milliseconds(timeout, "timeout"),
            retry=self.policy if retry is None else retry.policy,
            key_window_ms=self.key_window_ms,
            read=self.read,
            label=label,
            builds_on=builds_on,
            reserve=self.reserve if reserve is None else reserve,
            means=self._means,
        )

    def read(self, outcome: Settled) -> Any:
        """Return the result as the type that the tool returns. **Raises** CallFailed with the fields `tool`, `code`,
        `message` and `detail` if the call failed, UsageError if the tool returns another type today."""
        return self.result.load(completed(self.name, outcome))

    def read_plain(self, outcome: Settled) -> Any:
        """Return the result as JSON data, without the tool's type. **Raises** CallFailed, as `read`."""
        return canonical.parse(completed(self.name, outcome))

    def result_json(self, value: Any) -> str:
        return self.result.dump(value)

    def probe_json(self, value: Any) -> str | None:
        """Return a probe's result as canonical JSON; None: it did not happen. **Raises** UsageError for other types."""
        return None if value is DID_NOT_HAPPEN else self.result.dump(value)

    def run(
        self, args_json: str, *, idempotency_key: str, heartbeat: Heartbeat, secrets: Secrets | None = None
    ) -> Body:
        """Return an attempt, not begun yet: a coroutine of an async tool, else a function to be called in a thread. It
        looks up its `secrets` first. **Raises** UsageError for arguments that do not fit."""
        return self._body.bind(self.arguments.load(args_json, secrets), (idempotency_key, heartbeat), secrets)

    def run_on(self, earlier: EarlierCalls, args_json: str, *, idempotency_key: str) -> Body:
        """Return an attempt of a call that builds on `earlier` ones. **Raises** UsageError, unless overridden."""
        raise UsageError(f"tool {self.name} builds on no other calls", hint="`refold verify` the run")

    def run_probe(
        self, args_json: str, *, idempotency_key: str, heartbeat: Heartbeat, secrets: Secrets | None = None
    ) -> Body:
        """Return an attempt of the `probe`, not begun yet, as in `run`. **Raises** UsageError if there is none."""
        if self._probe is None:
            raise UsageError(f"tool {self.name} has no probe", hint='effect="probed" needs probe=')
        return self._probe.bind(self.arguments.load(args_json, secrets), (idempotency_key, heartbeat), secrets)

    @property
    def scripted(self) -> bool:
        """True if a test has replaced the function of the tool, see `acted_by`."""
        return isinstance(self._body, _Script)

    def acted_by(self, function: Callable[..., Any]) -> "ToolDef":
        """Return a copy of the tool that runs another function, for tests; this takes any of the tool's arguments."""
        double = copy.copy(self)
        double._body = _Script(function, self.arguments.names, f"the script of tool {self.name}")
        return double

    def schema(self) -> dict[str, Any]:
        return self.arguments.shape.schema

    def _check_names(self, tool: str) -> None:
        for name in _WORDS_OF_CALL:
            if name in self.arguments.names:
                raise UsageError(f"{tool}: ctx.call uses the word {name} itself", hint=f"rename the parameter {name}")
        if self.shown_as == "edit" and not {"before", "after"} <= set(self.arguments.names):
            raise UsageError(f"{tool}: shown_as='edit' is for texts before and after", hint="name two parameters so")

    def _check_options(self, tool: str) -> None:
        if not self.pattern.match(self.name):
            raise UsageError(f"{self.name!r} is not a tool name", hint="use letters, digits, underscore, dot and dash")
        for option, (kind, hint) in _CHOICES.items():
            if (value := getattr(self, option)) not in get_args(kind):
                raise UsageError(f"{tool}: {option}={value!r} is unknown", hint=hint)
        self._check_words(tool)
        if (self.probe is None) == (self.effect == "probed"):
            missing = "has no probe" if self.probe is None else f"has a probe, and effect={self.effect!r}"
            raise UsageError(f"{tool} {missing}", hint='effect="probed" and probe= go together')
        if not isinstance(self.retry, Retry):
            raise UsageError(f"{tool}: retry={self.retry!r}", hint="write retry=Retry(attempts=...)")
        self._check_times(tool)
        self._check_key(tool)

    def _check_words(self, tool: str) -> None:
        if isinstance(self.tags, str) or not all(isinstance(tag, str) and tag for tag in self.tags):
            raise UsageError(f"{tool}: tags={self.tags!r}", hint='write tags=("infra", "write")')
        if not isinstance(self.pool, str) or not _POOL.match(self.pool):
            raise UsageError(f"{tool}: pool={self.pool!r}", hint="use lower-case letters, digits, underscore and dash")

    def _check_times(self, tool: str) -> None:
        for option, value in (("timeout", self.timeout), ("key_window", self.key_window), ("lease", self.lease)):
            if value is not None and milliseconds(value, f"{tool}: {option}") == 0:
                raise UsageError(f"{tool}: {option} is zero", hint="give it at least a millisecond")
        if self.lease is not None and self.lease > timedelta(hours=1):
            raise UsageError(f"{tool}: lease is longer than an hour", hint="it is renewed for as long as the tool runs")
        if self.key_window is not None and self.key_window <= self.timeout:
            raise UsageError(f"{tool}: key_window= is not longer than timeout=", hint="no try could arrive within it")

    def _check_key(self, tool: str) -> None:
        if self.effect != "keyed":
            option = "key_window" if self.key_window is not None else "keyed_by" if self.keyed_by != "key" else ""
            if option:
                hint = 'declare effect="keyed", or leave it out'
                raise UsageError(f"{tool}: {option}= is for keyed tools", hint=hint)
        elif self.keyed_by == "key":
            self._refuse_keyless(tool)

    def _refuse_keyless(self, tool: str) -> None:
        # Without the key, its receiver would take a repetition for a second effect.
        if _KEY not in inspect.signature(self.function).parameters:
            hint = f"write `*, {_KEY}: str` in its signature and hand the key to the receiver; {NATURAL}"
            raise UsageError(f"{tool} is keyed and takes no {_KEY}", hint=hint)


class _Function:
    """An author's function, called with exactly the parameters of its signature."""

    def __init__(self, function: Callable[..., Any], names: Collection[str], tool: str) -> None:
        parameters = inspect.signature(function).parameters
        for name in FILLED:
            if name in parameters and parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY:
                raise UsageError(f"{tool}: {name} must be keyword-only", hint=f"write `*, {name}` in the signature")
        if unknown := [name for name in parameters if name not in names and name not in FILLED]:
            hint = f"it may ask for {', '.join([*names, *FILLED])}"
            raise UsageError(f"{tool} asks for {', '.join(unknown)}", hint=hint)
        self.is_async = inspect.iscoroutinefunction(function)
        self.function = function
        self._names = frozenset(parameters)

    def bind(self, args: dict[str, Any], handed: tuple[str, Heartbeat], secrets: Secrets | None) -> Body:
        everything = {**args, **dict(zip(FILLED, handed, strict=True))}
        arguments = {name: value for name, value in everything.items() if name in self._names}
        if self.is_async:
            coroutine: Coroutine[Any, Any, Any] = self.function(**arguments)
            return _revealed(secrets, coroutine) if secrets else coroutine
        return partial(_reveal, secrets, self.function, arguments) if secrets else partial(self.function, **arguments)


class _Script(_Function):
    """Function that a test substitutes for the author's in a tool."""


def _reveal(secrets: Secrets, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    secrets.look_up()
    return call(**arguments)


async def _revealed(secrets: Secrets, body: Coroutine[Any, Any, Any]) -> Any:
    try:
        await asyncio.to_thread(secrets.look_up)  # a provider that asks a server would hold all other async tools
    except BaseException:
        # Python would warn of a coroutine that was never awaited.
        body.close()
        raise
    return await body


def completed(tool: str, outcome: Settled) -> str:
    """Return the result of a call as JSON. **Raises** CallFailed if it failed, UsageError for other outcomes."""
    if isinstance(outcome, CallCompleted):
        return outcome.result
    if isinstance(outcome, CallFailed):
        failure = outcome.failure
        error = errors.CallFailed(f"{tool} failed: {failure.message}", tool=tool, code=failure.code)
        error.fields.update(message=failure.message, detail=failure.detail)
        raise error
    raise UsageError(f"{type(outcome).__name__} is not the outcome of a call", hint="`refold verify` the run")


def _refuse_untyped(function: FunctionType, tool: str) -> None:
    # Arguments and results are checked against their types, so `Any` has to be explicit.
    for parameter in inspect.signature(function).parameters.values():
        if parameter.annotation is parameter.empty and parameter.name not in FILLED:
            hint = f"write `{parameter.name}: str`, or `{parameter.name}: Any` to take whatever is JSON"
            raise UsageError(f"{tool}: parameter {parameter.name} has no type", hint=hint)
    if "return" not in function.__annotations__:
        raise UsageError(f"{tool}: its result has no type", hint="write `-> str`, or `-> None` if there is none")
