"""`refold init`: a project folder with an agent, its policy, and a passing test."""

import re
import shutil
import tempfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

from refold.cli import output
from refold.cli.platform import Printer
from refold.core.errors import ConflictError, UsageError

_NAME, _SUFFIX = "my-agents", ".template"
"""Project name in the scaffold, and the suffix that hides its files from test runners and linters."""
_DOTTED = ("gitignore",)


def init(name: Annotated[str, "Name of the project and of its new folder."], *, printer: Printer) -> None:
    """Create a project: an agent, tools, a policy, and a test that passes. Nothing is overwritten."""
    folder = Path(name)
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", folder.name):
        hint = "begin with a letter; small letters, digits, - and _ may follow"
        raise UsageError(f"{folder.name!r} is not the name of a project", hint=hint)
    files = sorted(_create(folder))
    path = output.escape(str(folder))
    text = f"[bold]{path}[/] has {', '.join(files)}\n\n  cd {path}\n  pytest\n  refold dev app.py"
    printer.print({"name": folder.name, "folder": str(folder.resolve()), "files": files}, text)


def _create(folder: Path) -> list[str]:
    """Create the folder, whole or not at all. **Raises** ConflictError, UsageError."""
    if folder.exists() or folder.is_symlink():
        raise ConflictError(f"{folder} is there already", hint="choose another name, or remove it")
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {folder.absolute().parent}", hint="make it first")
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.absolute().parent))
    try:
        (draft / folder.name).mkdir()
        _copy(files("refold.cli") / "scaffold", draft / folder.name, folder.name)
        (draft / folder.name).rename(folder)
    except OSError as error:
        # Somebody else was faster: a folder with something in it is never replaced.
        hint = "choose another name, or remove what is there"
        raise ConflictError(f"cannot make {folder}: {error.strerror}", hint=hint) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


def _copy(source: Traversable, target: Path, name: str) -> None:
    for child in source.iterdir():
        if child.is_dir():
            (target / child.name).mkdir()
            _copy(child, target / child.name, name)
        elif child.name.endswith(_SUFFIX):
            plain = child.name.removesuffix(_SUFFIX)
            file = target / (f".{plain}" if plain in _DOTTED else plain)
            file.write_text(child.read_text().replace(_NAME, name))
