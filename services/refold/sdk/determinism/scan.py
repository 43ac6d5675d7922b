"""Scan of an agent's code before it runs: refuses non-deterministic names that the code loads, also in functions of the
same module. A type annotation, a tool that is handed to `ctx.call` or a `timedelta` is no finding."""

import builtins
import dis
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

from refold.core.errors import UsageError
from refold.sdk.determinism.banned import FILES, PATHS, hint_for, hint_for_module
from refold.sdk.source import closure_of, codes_of

_MARK = "__refold_tool__"
_NOTHING: Any = object()
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_NAME = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FAST", "LOAD_CLASSDEREF")


@dataclass(slots=True)
class _LoadedObject:
    """Object that an agent's bytecode loads, by its dotted `path` in the code; `called` if the code calls it."""

    path: str
    symbol: Any
    line: int
    called: bool = False


def mark_tool(function: FunctionType) -> None:
    """Mark the function of a tool: agents only name it, so the scan leaves out its body."""
    setattr(function, _MARK, True)


def check(function: FunctionType, subject: str) -> list[FunctionType]:
    """Return the function and its helpers in its module. **Raises** UsageError for a banned name."""
    functions: list[FunctionType] = []
    ahead = [function]
    while ahead:
        current = ahead.pop()
        if any(current is other for other in functions):
            continue
        functions.append(current)
        for load in _loads_in(current):
            _refuse_banned(load, current, subject)
            symbol, home = load.symbol, function.__module__
            if isinstance(symbol, FunctionType) and symbol.__module__ == home and not hasattr(symbol, _MARK):
                ahead.append(symbol)
    return functions[:1] + sorted(functions[1:], key=lambda helper: helper.__qualname__)


def tools_named(functions: list[FunctionType]) -> Iterator[FunctionType]:
    for function in functions:
        for load in _loads_in(function):
            if hasattr(load.symbol, _MARK):
                yield load.symbol


def attributes_of(function: FunctionType, names: Collection[str]) -> Iterator[str]:
    """Attributes of local variables with these names (`wait_for` of `ctx.wait_for`), as far as bytecode shows them."""
    before = ""
    for op, name, _, _ in chain.from_iterable(map(_instructions, codes_of(function.__code__))):
        if op in _ATTRIBUTE and before in names:
            yield name
        before = name if op.startswith(("LOAD_FAST", "LOAD_DEREF")) else ""


def _refuse_banned(load: _LoadedObject, where: FunctionType, subject: str) -> None:
    place = f"{where.__qualname__}, line {load.line}"
    if hasattr(load.symbol, _MARK):
        if load.called:
            remedy = f"write `await ctx.call({load.path}, ...)`"
            raise UsageError(f"{subject} calls the tool {load.path} itself ({place})", hint=remedy)
        return
    if hint := hint_for(load.symbol, called=load.called):
        raise UsageError(f"{subject} uses {load.path} ({place})", hint=hint, name=load.path)


# Up to 3.12 the NULL of a plain call stands before its callee (`PUSH_NULL; LOAD f`), from 3.13 on behind it. Read the
# other way round, the NULL of one call marks the argument of another as called.
_NULL_BEFORE, _NULL_BEHIND = ("PUSH_NULL", None) if sys.version_info < (3, 13) else (None, "PUSH_NULL")


def _loads_in(function: FunctionType) -> Iterator[_LoadedObject]:
    for code in codes_of(function.__code__):
        yield from _loads_in_code(function, code)


def _loads_in_code(function: FunctionType, code: CodeType) -> Iterator[_LoadedObject]:
    scope = _Scope(function)
    load: _LoadedObject | None = None
    before = holder = ""
    methods = _path_methods(function, code)
    for op, name, arg, line in _instructions(code):
        if load is not None:
            if op in _ATTRIBUTE and scope.follow_attribute(load, name, called=_is_method(op, arg)):
                continue
            # If an attribute is not followed, a call is one of the attribute.
            load.called = op not in _ATTRIBUTE and (load.called or op == _NULL_BEHIND)
            yield load
        if op in _NAME:
            load = scope.load(op, name, line, called=_is_callee(op, arg, before))
        else:
            yield from _path_method(op, name, line, methods, holder=holder)
            yield from scope.note_binding(op, name, line, load)
            load = None
        before, holder = op, name
    if load is not None:
        yield load


def _path_method(op: str, name: str, line: int, methods: frozenset[str], *, holder: str) -> Iterator[_LoadedObject]:
    # Methods of a workspace of pydantic-ai are recorded calls.
    if op in _ATTRIBUTE and name in methods and holder != "workspace":
        yield _LoadedObject(name, getattr(Path, name), line, called=True)


def _path_methods(function: FunctionType, code: CodeType) -> frozenset[str]:
    symbols = [function.__globals__.get(name) for name in code.co_names]
    return PATHS if any(isinstance(symbol, type) and issubclass(symbol, PurePath) for symbol in symbols) else FILES


def _is_method(op: str, arg: int) -> bool:
    # From Python 3.12 on, the lowest bit of LOAD_ATTR marks a method call.
    return op == "LOAD_METHOD" or (sys.version_info >= (3, 12) and bool(arg & 1))


def _is_callee(op: str, arg: int, before: str) -> bool:
    return before == _NULL_BEFORE or (op == "LOAD_GLOBAL" and bool(arg & 1))


def _instructions(code: CodeType) -> Iterator[tuple[str, str, int, int]]:
    """Instructions as (operation, name, argument, line), one load or store each."""
    for step in dis.get_instructions(code):
        if step.opname in ("EXTENDED_ARG", "CACHE", "NOP"):
            continue
        line = (step.positions.lineno if step.positions else None) or code.co_firstlineno
        # From Python 3.13 on one instruction may load or store two variables.
        if isinstance(step.argval, tuple):
            kinds = [kind for kind in step.opname.split("_") if kind in ("LOAD", "STORE")]
            for kind, name in zip(kinds, step.argval, strict=False):
                yield f"{kind}_FAST", str(name), 0, line
        else:
            yield step.opname.removesuffix("_CHECK"), str(step.argval), step.arg or 0, line


class _Scope:
    def __init__(self, function: FunctionType) -> None:
        self._globals, self._closure = function.__globals__, closure_of(function)
        self._locals: dict[str, Any] = {}
        self._module: Any = _NOTHING
        self._fresh: Any = _NOTHING

    def load(self, op: str, name: str, line: int, *, called: bool) -> _LoadedObject | None:
        if op == "LOAD_FAST":
            symbol = self._locals.get(name, _NOTHING)
        elif op in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
            symbol = self._locals.get(name, self._closure.get(name, _NOTHING))
        else:
            symbol = self._globals.get(name, getattr(builtins, name, _NOTHING))
        return None if symbol is _NOTHING else _LoadedObject(name, symbol, line, called)

    def follow_attribute(self, load: _LoadedObject, name: str, *, called: bool) -> bool:
        # An attribute of other objects might run code.
        if not isinstance(load.symbol, ModuleType | type):
            return False
        symbol = getattr(load.symbol, name, _NOTHING)
        if symbol is _NOTHING:
            return False
        load.path, load.symbol, load.called = f"{load.path}.{name}", symbol, load.called or called
        return True

    def note_binding(self, op: str, name: str, line: int, load: _LoadedObject | None) -> Iterator[_LoadedObject]:
        if op == "IMPORT_NAME":
            # Without importing: only loaded modules can be scanned.
            self._module = self._fresh = sys.modules.get(name, _NOTHING)
            if self._module is _NOTHING and hint_for_module(name):
                yield _LoadedObject(name, ModuleType(name), line)
        elif op == "IMPORT_FROM" and self._module is not _NOTHING:
            self._fresh = getattr(self._module, name, _NOTHING)
        elif op.startswith("STORE_"):
            self._bind_local(name, load.symbol if load else _NOTHING)

    def _bind_local(self, name: str, loaded: Any) -> None:
        symbol = loaded if self._fresh is _NOTHING else self._fresh
        if symbol is not _NOTHING:
            self._locals[name] = symbol
        else:
            # Only a run of the code would show its value.
            self._locals.pop(name, None)
        self._fresh = _NOTHING
