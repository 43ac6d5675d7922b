"""The pytest plugin, which imports the kit at first use: pytest loads it wherever Refold is installed.

- `refold` is the kit over the app of `refold_app`: `refold.run("order", amount=20)`. Each test has its own.
- `refold_app` is the app of `--refold-app` or the setting `refold_app` (`shop.app:app`); a suite may override it.
- A failed test's report shows the histories of its last runs.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import refold
from refold import testing

if TYPE_CHECKING:
    from refold.testing.reading import RunRead

TARGET = "refold_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("refold")
    text = "the app that the fixture `refold` is about: package.module:app, or path/file.py:app"
    group.addoption("--refold-app", metavar="MODULE:APP", default="", help=text)
    group.addoption("--refold-update", action="store_true", help="write golden histories that are missing or differ")
    parser.addini(TARGET, text, default="")


@pytest.fixture(scope="session")
def refold_app(pytestconfig: pytest.Config) -> refold.App:
    """Give the app under test. A test suite may override this fixture."""
    target: str = pytestconfig.getoption("--refold-app") or pytestconfig.getini(TARGET)
    if not target:
        raise pytest.UsageError(
            'which app? Write refold_app = "shop.app:app" among the settings of pytest, say '
            "--refold-app, or define a fixture refold_app that returns it"
        )
    return refold.App.load(_as_imported(pytestconfig.rootpath, target) if ".py" in target else target)


@pytest.fixture(name="refold")
def kit(request: pytest.FixtureRequest, refold_app: refold.App) -> Iterator[testing.Kit]:
    """Give the kit over the app: agents run in this process, on a clock of their own, and are closed after the test."""
    name = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
    update = request.config.getoption("--refold-update")
    harness = testing.Kit(refold_app, request.path.parent / "histories", f"{request.path.stem}.{name}", update=update)
    yield harness
    harness.close()


def _as_imported(root: Path, target: str) -> str:
    # A module that a test has imported from this file: loaded again, it would be another app.
    file, suffix, app = str(root / target).partition(".py")
    path = str(Path(file + suffix).resolve())
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == path:
            return f"{name}{app}"
    return f"{path}{app}"


def pytest_runtest_logstart() -> None:
    _recent().clear()


# A wrapper of the old kind: the new one would break older versions of pytest wherever Refold is installed.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    if report.failed and call.when == "call":
        report.sections += [(f"refold run {run.state.run_id}", run.story) for run in _recent()]


def pytest_runtest_logfinish() -> None:
    _recent().clear()


def _recent() -> deque[RunRead]:
    # No import: the hooks run in every project in whose environment Refold is installed.
    loaded = sys.modules.get("refold.testing.reading")
    return loaded.RECENT if loaded else deque()
