"""A name for what a function does: it changes when the code changes."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable
from hashlib import blake2b
from types import CodeType, FunctionType


def code_version(functions: Iterable[FunctionType]) -> str:
    """The digest of some functions' code, in 16 hex digits. Equal in every process that runs the same source."""
    found = blake2b(digest_size=8)
    for function in functions:
        found.update(_text(function).encode())
        found.update(b"\0")
    return found.hexdigest()


def _text(function: FunctionType) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):  # typed at a prompt, or shipped without source
        return _code(function.__code__)


def _code(code: CodeType) -> str:
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_name} {code.co_code.hex()} {code.co_names} {constants}"
