"""What the command line says and how it exits where no platform is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from refold.cli.errors import exit_code
from refold.core import errors
from refold.core.errors import RefoldError
from tests.cli.terminal import refold

NOBODY = ("--kafka", "127.0.0.1:9")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RefoldError("x"), 1),
        (errors.FoldError("x"), 1),
        (errors.UsageError("x"), 2),
        (errors.MalformedError("x"), 2),
        (errors.NotFoundError("x"), 3),
        (errors.ConflictError("x"), 4),
        (errors.UnreachableError("x"), 5),
        (errors.TimedOutError("x"), 6),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: RefoldError, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize(
    "words",
    [
        ("run", "list"),
        ("run", "show", "r"),
        ("run", "start", "deploy"),
        ("verify",),
        ("run", "resolve", "r/3", "--give-up"),
        ("topics", "apply", "--check"),
        ("deadletter", "list"),
    ],
)
def test_where_nobody_listens_a_command_says_so_and_what_to_run(words: tuple[str, ...]) -> None:
    result = refold(*words, *NOBODY)

    assert result.exit_code == 5
    assert "error: nobody listens at 127.0.0.1:9" in result.stderr
    assert "`refold dev`" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "list", "--status", "done"), "'done' is not a status"),
        (("run", "start", "deploy", "--label", "x"), "'x' is not a label"),
        (("run", "start", "deploy", "--input", "{"), "--input: the text is not JSON: Expecting property name"),
        (("run", "start", "deploy", "--input", '{"a": NaN}'), "--input: the JSON text holds NaN"),
        (("run", "start", "deploy", "--input", "@/nowhere"), "cannot read /nowhere: No such file or directory"),
        (("run", "signal", "r", "go", "--payload", "{"), "--payload: the text is not JSON"),
        (("run", "start", "deploy", "--id", "a/b"), "'a/b' is not a run id"),
        (("run", "resolve", "r/3"), "one outcome of the call is needed"),
        (("run", "resolve", "r/3", "--give-up", "--did-not-happen"), "one outcome of the call is needed"),
    ],
)
def test_what_is_wrong_with_the_words_is_said_before_anything_is_asked(words: tuple[str, ...], said: str) -> None:
    result = refold(*words, *NOBODY)

    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        "replay --app a.py --bundle b.jsonl",
        "replay r-1 --app a.py --jobs 2",
        "keys new --replaces k-1 --anybody",
        "keys new --replaces k-1 --no-publish",
        "keys new ada --api --role viewer --use vote",
        "keys new ada --api --role viewer --at 2030-01-31T12:00Z",
        "keys new ada --use vote --actor ada --expires 90d",
        "keys new ada --use vote --actor ada --at 2030-01-31T12:00Z",
        "keys revoke k-1 --reason stolen --file keys.json",
        "keys revoke k-1 --api --reason stolen",
        "policy publish policies --force",
        "run callback cb_x --fail declined --payload 7",
        "run cancel r-1 --as-failed --as-operator",
        "halt --lift --list",
        "halt --lift --tool pay --reason mended",
        "archive list --pending --app a.py --limit 3",
        "worker list --role planner --agents",
        "worker list --agent order --tools",
        "worker list --tool pay",
        "verify b.jsonl --settle 1",
        "fork r-1 --at 3 --live --model m",
        "fork r-1 --at 3 --live --app a.py",
        "fork r-1 --app a.py --as another",
        "fork r-1 --app a.py --reason late",
        "fork r-1 --app a.py --failed",
        "fork --app a.py --input 7",
    ],
)
def test_an_option_of_a_commands_other_use_is_refused_before_anything_is_read(line: str) -> None:
    result = refold(*line.split())

    assert (result.exit_code, result.stdout) == (2, "")
    assert "--" in result.stderr.splitlines()[0]


def test_a_wrong_option_is_a_usage_error() -> None:
    assert refold("run", "list", "--nonsense").exit_code == 2


def test_a_traceback_is_there_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in refold("run", "list", *NOBODY).stderr
    monkeypatch.setenv("REFOLD_DEBUG", "1")
    assert "Traceback" in refold("run", "list", *NOBODY).stderr


def test_addresses_come_from_option_environment_and_dev_json_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev.json").write_text('{"kafka": "127.0.0.1:3", "redis": "redis://127.0.0.1:3"}')
    data = ("--data", str(tmp_path))

    assert "at 127.0.0.1:3," in refold("run", "list", *data).stderr
    monkeypatch.setenv("REFOLD_KAFKA__BOOTSTRAP", "127.0.0.1:2")
    assert "at 127.0.0.1:2," in refold("run", "list", *data).stderr
    assert "at 127.0.0.1:1," in refold("run", "list", *data, "--kafka", "127.0.0.1:1").stderr


def test_doctor_reports_every_part_though_others_are_down() -> None:
    result = refold("doctor", *NOBODY, "--redis", "redis://127.0.0.1:9/0", "--json")

    found = {(finding["check"], finding["verdict"]) for finding in json.loads(result.stdout)["findings"]}
    assert result.exit_code == 1
    assert {("python", "ok"), ("schemas", "ok"), ("kafka", "problem"), ("redis", "problem")} <= found


def test_no_command_tells_the_password_of_a_redis() -> None:
    result = refold("doctor", *NOBODY, "--redis", "redis://default:hunter2@127.0.0.1:9/0")

    assert "127.0.0.1:9" in result.stdout
    assert "hunter2" not in result.stdout + result.stderr


@pytest.mark.parametrize("plan", [True, False])
def test_doctor_tells_of_a_plan_that_calls_every_tool(tmp_path: Path, plan: bool) -> None:
    app = tmp_path / f"planned_{plan}.py"
    app.write_text(f"from refold import App\napp = App('a', plan={plan})\n")

    result = refold("doctor", *NOBODY, "--redis", "redis://127.0.0.1:9/0", "--app", str(app))

    assert ("may call every tool with any arguments" in " ".join(result.stdout.split())) is plan
