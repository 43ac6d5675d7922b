"""Loading of an app by its name on the command line."""

import importlib
import importlib.util
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from refold.core.errors import UsageError

T = TypeVar("T")


def load(target: str, kind: type[T]) -> T:
    """Return the object of this class at `package.module[:name]` or `path/file.py[:name]`. **Raises** UsageError."""
    place, colon, name = target.rpartition(":")
    if not colon or "/" in name or "\\" in name:
        place, name = target, ""
    module = _file(Path(place)) if place.endswith(".py") else _module(place)
    matches = {key: candidate for key, candidate in vars(module).items() if isinstance(candidate, kind)}
    if name and name not in matches:
        raise UsageError(f"{place} has no {kind.__name__} named {name}", hint=f"there is {_list(matches)}")
    if not name and len({id(candidate) for candidate in matches.values()}) != 1:
        raise UsageError(f"which {kind.__name__} of {place}?", hint=f"write {place}:NAME; there is {_list(matches)}")
    return matches[name] if name else next(iter(matches.values()))


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint="give the path of a Python file, or package.module:app")
    path = path.resolve()
    names = _names(path)
    # Without a package, `sys`: `import_module` refuses an empty name.
    with suppress(ImportError):  # its package may load it
        importlib.import_module(names[0].rpartition(".")[0] or "sys")
    for loaded in map(sys.modules.get, names):
        if loaded is not None and Path(loaded.__file__ or "").resolve() == path:
            return loaded
    names = [name for name in names if name not in sys.modules] or [f"refold_app_{path.stem}"]
    return _executed(path, names)


def _executed(path: Path, names: list[str]) -> ModuleType:
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


def _names(path: Path) -> list[str]:
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


def _module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it needs is not
        raise UsageError(f"there is no module {name}", hint="give package.module:app or path/file.py") from error


def _list(names: dict[str, T]) -> str:
    return ", ".join(sorted(names)) or "none"
