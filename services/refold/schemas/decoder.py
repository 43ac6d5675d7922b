"""The decoder in C of what is read in bulk: compiled on demand, and used where it is whole and made for this Refold.

It lies beside this file: whoever can replace it can replace the Python code as well. Its stamp is a digest of its
source, its content and the interpreter; a module without the stamp that is right here is never loaded.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

from refold.core import events, messages
from refold.core.errors import UsageError, not_installed
from refold.core.wire import avro, codec, schemas
from refold.schemas.pyx import pyx_of

BULK = (events.Entry, messages.ToolRequest, messages.ToolResult)
"""Of these there are as many as there are steps; anything else is a few a run at most."""

HERE = Path(__file__).parent
_ABI = sysconfig.get_config_var("EXT_SUFFIX") or ""
_NAME = "_decoder"
_AGAIN = "`refold schemas compile` makes it again"
_COMPILE_S = 300.0


class Decoder(NamedTuple):
    """The decoder of this process, and the reason; `refused` is True if a compiled one lies there and is not used."""

    name: Literal["compiled", "python"]
    why: str
    refused: bool = False


def choose(wanted: Literal["auto", "python", "compiled"], folder: Path = HERE) -> Decoder:
    """Let this process decode by C from now on, or by Python.

    **Raises** UsageError when `compiled` is wanted and cannot be.
    """
    by_c: codec.Compiled = {}
    found = Decoder("python", "REFOLD_DECODER=python")
    if wanted != "python" and not module_path(folder).exists():
        found = Decoder("python", "none is compiled for this Python; `refold schemas compile` makes one")
    elif wanted != "python":
        try:
            by_c, found = load(folder), Decoder("compiled", str(module_path(folder)))
        except UsageError as error:
            found = Decoder("python", str(error), refused=True)
    if wanted == "compiled" and found.name != wanted:
        raise UsageError("REFOLD_DECODER=compiled cannot be", hint=found.why)
    codec.accelerate(by_c)
    return found


def module_path(folder: Path) -> Path:
    """Where the module for this Python lies."""
    return folder / f"{_NAME}{_ABI}"


def load(folder: Path) -> codec.Compiled:
    """The compiled readers by schema id. **Raises** UsageError if the module is not made for just this installation."""
    path = module_path(folder)
    try:
        right = path.with_suffix(".stamp").read_bytes() == _stamp(path.read_bytes())
    except OSError:
        right = False
    if not right:
        raise UsageError(f"{path} was changed, or made for another Refold or Python", hint=_AGAIN)
    return readers(path, codec.CLASSES)


def readers(path: Path, classes: Mapping[str, type]) -> codec.Compiled:
    """The readers of a compiled module, whatever it was made from. **Raises** UsageError if it is none."""
    loader = ExtensionFileLoader(_NAME, str(path))
    try:
        module: Any = loader.create_module(ModuleSpec(_NAME, loader, origin=str(path)))
        loader.exec_module(module)
    except ImportError as error:
        raise UsageError(f"{path} cannot be loaded: {error}", hint=_AGAIN) from None
    found: codec.Compiled = module.bind(classes, avro.default_of)
    return found


def build_decoder(folder: Path = HERE) -> Path:
    """Compile the decoder, and return its path. **Raises** UsageError where Cython or a C compiler is missing."""
    target = module_path(folder)
    with TemporaryDirectory(dir=folder, prefix=_NAME) as name:
        made = compiled(_source(), Path(name))
        made.with_suffix(".stamp").write_bytes(_stamp(made.read_bytes()))
        # Who starts in between finds two files that do not agree, and decodes by Python.
        for each in (made, made.with_suffix(".stamp")):
            each.replace(target.with_suffix(each.suffix))
    return target


def compiled(text: str, folder: Path, flags: Sequence[str] = ("-O2", "-g0")) -> Path:
    """A module out of Cython source. **Raises** as `build_decoder`."""
    if find_spec("Cython") is None:
        raise not_installed(ModuleNotFoundError(name="Cython"))
    code, made = folder / f"{_NAME}.c", folder / f"{_NAME}.so"
    code.with_suffix(".pyx").write_text(text)
    _run([sys.executable, "-m", "cython", "-o", str(code), str(code.with_suffix(".pyx"))])
    link = shlex.split(os.environ.get("LDSHARED") or sysconfig.get_config_var("LDSHARED") or "cc -shared")
    include = f"-I{sysconfig.get_path('include')}"
    _run([*link, "-fPIC", "-fwrapv", "-DNDEBUG", *flags, include, str(code), "-o", str(made)])
    return made


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        why = str(getattr(error, "stderr", "") or error)[-500:].strip()
        hint = "install a C compiler and Python's headers (apt-get install gcc python3-dev); without, Python decodes"
        raise UsageError(f"{command[0]} cannot compile the decoder: {why}", hint=hint) from None


def _source() -> str:
    bulk = {codec.SUBJECTS[cls] for cls in BULK}
    roots = ((number, schema) for number, (subject, schema) in schemas.registered()[0].items() if subject in bulk)
    return pyx_of(roots, codec.CLASSES)


def _stamp(body: bytes) -> bytes:
    parts = (_source().encode(), f"{sys.implementation.cache_tag} {_ABI}".encode(), body)
    return b" ".join(sha256(part).hexdigest().encode() for part in parts)
