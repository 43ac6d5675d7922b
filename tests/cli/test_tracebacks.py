"""The line of the user's code that failed: in `run show`, in `--json`, in the logs and in a replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.terminal import Dev, served

APP = """
from refold import App, Context, Retry

app = App("errs", redact=lambda text: text.replace("s3cret", "***"))
SECRET = "s3cret"


def deep(key: str) -> int:
    return {"a": 1}[key]  # line 9


@app.tool(effect="pure", retry=Retry(attempts=1))
def look_up(key: str) -> int:
    if key == "hidden":
        raise ValueError("the password is s3cret")
    return deep(key)  # line 16


@app.agent
async def looks(ctx: Context, key: str) -> int:
    return await ctx.call(look_up, key)  # line 21


@app.agent
async def breaks(ctx: Context) -> int:
    found = await ctx.call(look_up, "a")
    assert deep("s3cret"), found  # line 27
"""


@pytest.fixture(scope="module")
def errs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Give a platform whose tool and agents fail."""
    folder = tmp_path_factory.mktemp("errs")
    (folder / "data").mkdir()
    (folder / "app.py").write_text(APP)
    with served(folder / "app.py", folder / "data") as running:
        yield running


def logged(dev: Dev, service: str, event: str) -> list[dict[str, Any]]:
    lines = (dev.data / "logs" / f"{service}.log").read_text().splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return [row for row in rows if row["event"] == event]


@pytest.mark.long
def test_a_tools_exception_names_the_users_line_everywhere(errs: Dev) -> None:
    errs.refold("run", "start", "looks", "--id", "l-1", "--input", '{"key": "b"}', "--wait", code=1)

    shown = errs.refold("run", "show", "l-1").stdout
    assert "KeyError: 'b' errs0/app.py:9 in deep" in shown
    assert "errs0/app.py:21 in looks" in shown
    data = errs.read("run", "show", "l-1")
    assert data["timeline"][0]["failure"]["detail"] == "errs0/app.py:9 in deep"
    assert data["failure"]["detail"] == "errs0/app.py:21 in looks"
    [failed] = [row for row in logged(errs, "all", "tool.failed") if row["call_id"].startswith("l-1/")]
    assert "line 16, in look_up" in failed["stack"]
    assert "line 9, in deep" in failed["stack"]
    assert "refold/" not in failed["stack"].replace(str(errs.data), "")
    [raised] = [row for row in logged(errs, "all", "agent.raised") if row["run_id"] == "l-1"]
    assert "line 21, in looks" in raised["stack"]
    [ended] = [row for row in logged(errs, "all", "run.failed") if row["run_id"] == "l-1"]
    assert ended["at"] == "errs0/app.py:21 in looks"


@pytest.mark.long
def test_a_replay_of_a_failed_run_shows_where_the_agent_raised(errs: Dev) -> None:
    errs.refold("run", "start", "breaks", "--id", "b-1", "--wait", code=1)

    replayed = errs.refold("replay", "b-1", "--app", str(errs.data.parent / "app.py")).stdout

    assert "KeyError" in replayed
    assert "line 27, in breaks" in replayed
    assert "line 9, in deep" in replayed


@pytest.mark.long
def test_what_the_app_redacts_is_in_no_log(errs: Dev) -> None:
    errs.refold("run", "start", "looks", "--id", "h-1", "--input", '{"key": "hidden"}', "--wait", code=1)

    [failed] = [row for row in logged(errs, "all", "tool.failed") if row["call_id"].startswith("h-1/")]

    assert failed["error"] == "ValueError: the password is ***"
    assert "raise ValueError" in failed["stack"]
    assert "s3cret" not in (errs.data / "logs" / "all.log").read_text()
