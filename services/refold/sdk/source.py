"""Version of a function's code: a digest, and its foundation. Python and frameworks decide the order of asyncio
callbacks, so a run continues on those it began with."""

import dis
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from importlib import metadata
from types import CodeType, FunctionType, ModuleType
from typing import Any

FRAMEWORKS = {
    "anyio": ("anyio",),
    "pydantic_ai": ("pydantic-ai-slim", "pydantic-ai"),
    "agents": ("openai-agents",),
    "langgraph": ("langgraph",),
}
"""Packages that decide the order of callbacks, with their names of installation."""

_STANDS_ON = re.compile(r"\+py[0-9.]+(\+[a-z_]+[0-9.]+)*$")


def code_version(functions: Iterable[FunctionType]) -> str:
    """Digest of functions' code, 16 hex digits, equal in every process that runs the same source."""
    digest = blake2b(digest_size=8)
    for function in functions:
        digest.update(_source_text(function).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _source_text(function: FunctionType) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):  # typed at a prompt, or shipped without source
        return _code_text(function.__code__)


def _code_text(code: CodeType) -> str:
    constants = [_code_text(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_name} {code.co_code.hex()} {code.co_names} {constants}"


def foundation(functions: Iterable[FunctionType]) -> tuple[str, ...]:
    """Minor versions of Python and of the frameworks that the functions' modules use, `anyio4.12`."""
    # Patch releases do not count, or each would stall all runs; a comparison with history detects their changes.
    used = {name.partition(".")[0] for function in functions for name in _modules_used(function)}
    used |= {"anyio"} if used & {"pydantic_ai", "agents"} else set()  # they are built on it
    versions = ((name, _minor_version(name)) for name in FRAMEWORKS if name in used)
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    return python, *(f"{name}{version}" for name, version in versions if version)


def spoken(version: str) -> tuple[str, dict[str, str]]:
    """Split an agent's version into its name, and its foundation by name."""
    match = _STANDS_ON.search(version)
    if match is None:
        return version, {}
    parts = [re.split(r"(?=[0-9])", part, maxsplit=1) for part in match.group()[1:].split("+")]
    return version[: match.start()], {part[0]: part[1] for part in parts}


def in_words(stands_on: dict[str, str]) -> str:
    return " and ".join(f"{'Python' if name == 'py' else name} {number}" for name, number in stands_on.items())


def codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def closure_of(function: FunctionType) -> dict[str, Any]:
    """Variables of enclosing functions that a function uses, by name."""
    values: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the cell is still empty: a function that names itself, and is being decorated
            values[name] = cell.cell_contents
    return values


def _modules_used(function: FunctionType) -> Iterator[str]:
    for code in codes_of(function.__code__):
        yield from (step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME")
    for symbol in list(function.__globals__.values()):
        if isinstance(symbol, ModuleType):
            yield symbol.__name__
        else:
            yield (symbol if isinstance(symbol, type | FunctionType) else type(symbol)).__module__ or ""


def _minor_version(name: str) -> str:
    for distribution in FRAMEWORKS[name]:
        with suppress(metadata.PackageNotFoundError):
            return ".".join(re.findall(r"[0-9]+", metadata.version(distribution))[:2])
    return ""
