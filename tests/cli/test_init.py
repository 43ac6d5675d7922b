"""`refold init`: the project that it begins is whole, its tests pass, and `refold dev` serves it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from datetime import timedelta
from pathlib import Path

import pytest

from refold.client import Client
from refold.core.errors import RefoldError
from tests.cli.terminal import refold
from tests.waiting import eventually

FILES = [
    *(".gitignore", "README.md"),
    "app.py",
    "policies/money.yaml",
    "pyproject.toml",
    "roles.yaml",
    "tests/test_app.py",
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a project that was begun in an empty folder."""
    monkeypatch.chdir(tmp_path)
    done = refold("init", "corner-shop", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["name"], told["files"]) == ("corner-shop", FILES)
    return tmp_path / "corner-shop"


def clean() -> dict[str, str]:
    """The environment of a user, without settings of this test."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("REFOLD_", "PYTEST_"))}


@pytest.mark.long
def test_a_project_that_is_begun_bears_its_name_and_its_tests_pass(project: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project, env=clean(), capture_output=True, text=True, check=False, timeout=120)
    ruff = Path(sys.executable).with_name("ruff")
    linted = subprocess.run([ruff, "check"], cwd=project, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    assert linted.returncode == 0, linted.stdout
    assert not any(
        "my-agents" in path.read_text() for path in project.rglob("*") if path.suffix in (".md", ".toml", ".py")
    )
    assert sorted(path.name for path in project.parent.iterdir()) == ["corner-shop"]


def test_its_policy_is_one_that_can_be_published(project: Path) -> None:
    assert refold("policy", "check", str(project / "policies")).exit_code == 0


def test_its_wheel_has_the_app(project: Path) -> None:
    build = [sys.executable, "-c", "from hatchling import build; print(build.build_wheel('.'))"]
    done = subprocess.run(build, cwd=project, env=clean(), capture_output=True, text=True, check=True, timeout=120)

    names = zipfile.ZipFile(project / done.stdout.split()[-1]).namelist()
    assert [name for name in names if ".dist-info/" not in name] == ["app.py"]


@pytest.mark.parametrize("there", ["folder", "file", "link"])
def test_what_is_there_is_never_overwritten(there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if there == "folder":
        (tmp_path / "shop").mkdir()
    elif there == "file":
        (tmp_path / "shop").write_text("mine")
    else:
        (tmp_path / "shop").symlink_to(tmp_path / "elsewhere")

    done = refold("init", "shop")

    assert done.exit_code == 4
    assert "is there already" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]
    assert there != "file" or (tmp_path / "shop").read_text() == "mine"


@pytest.mark.parametrize("name", ["Shop", "7up", "a b", "..", "no/where"])
def test_what_is_no_name_of_a_project_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    done = refold("init", name)

    assert done.exit_code in (2, 4)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_refold_dev_serves_it_and_asks_people_about_large_refunds(project: Path) -> None:
    log = project / "dev.log"
    with log.open("w") as out:
        command = [sys.executable, "-m", "refold", "dev", "app.py"]
        dev = subprocess.Popen(command, cwd=project, env=clean(), stdout=out, stderr=subprocess.STDOUT)
    try:
        state = project / ".refold" / "dev.json"
        eventually(lambda: dev.poll() is not None or state.exists(), within=90, what="refold dev")
        assert dev.poll() is None, log.read_text()
        with Client(data=str(state.parent), actor="ann") as client:
            client.start("goodwill", {"order": "order-1", "cents": 900}, id="small")
            client.start("goodwill", {"order": "order-7", "cents": 9_000}, id="large")

            assert client.result("small", timeout=timedelta(seconds=60)).endswith(".json")
            with Client(data=str(state.parent), actor="bob") as other:
                other.decide(eventually(lambda: asked(other)), "reject", message="too much")
            assert "too much" in client.result("large", timeout=timedelta(seconds=60))
    finally:
        dev.send_signal(signal.SIGINT)
        assert dev.wait(60) == 0, log.read_text()
    assert len(list((project / "refunds").iterdir())) == 1


def asked(client: Client) -> str:
    """The question about the large refund, once it is there."""
    try:
        return client.approval("large").id
    except RefoldError:
        return ""
