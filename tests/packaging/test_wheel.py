"""What is built carries all it needs, and what is installed is locked."""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def normal(name: str) -> str:
    """Return a package name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_wheel_carries_code_schemas_infra_and_the_pages_of_the_docs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        scripts = content.read(entry_points).decode()

    assert "refold = refold.cli.main:app" in scripts
    assert "[refold.agents]\npydantic_ai = refold.contrib.pydantic_ai:durable" in scripts
    assert "[pytest11]\nrefold = refold.testing.plugin" in scripts
    for folder in ("schemas", "infra", "docs", "skills"):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        files = [path for path in files if folder != "docs" or path.suffix in (".md", ".txt")]
        assert {f"refold/_{folder}/{path.relative_to(ROOT / folder)}" for path in files} <= names
    modules = (ROOT / "services").rglob("*.py")
    assert {str(path.relative_to(ROOT / "services")) for path in modules} <= names


def test_every_dependency_is_locked_with_hashes_and_without_an_address() -> None:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = content["project"], content["dependency-groups"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"], *groups["contributing"]]
    lock = (ROOT / "requirements.lock").read_text()

    locked = {normal(name): body for name, body in re.findall(r"^(\S+?)==(.*(?:\n .*)*)", lock, re.MULTILINE)}

    assert {normal(re.split(r"[\[<>=;]", line)[0]) for line in wanted} <= locked.keys()
    assert all("--hash=sha256:" in body for body in locked.values())
    assert not re.search(r"https?:|index.url", lock)
