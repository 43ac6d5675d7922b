"""What a command writes where not every character can be written, and where no file can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refold.cli import errors


def refold(*arguments: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "refold", *arguments], env={**os.environ, **env}, capture_output=True, check=False
    )


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app whose import prints, as agents do in services."""
    file = tmp_path / "app.py"
    file.write_text(
        "from refold import App\napp = App('shop')\nprint('größe \U0001f680')\n"
        "@app.tool(effect='pure')\ndef weigh(größe: str) -> str: return größe\n",
        encoding="utf-8",
    )
    return file


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_app_prints_and_what_json_contains_is_escaped_where_it_cannot_be_written(
    encoding: str, app: Path
) -> None:
    rules = app.with_name("rules.yaml")
    rules.write_text("rules: []")
    done = refold("policy", "check", str(rules), "--app", str(app), PYTHONIOENCODING=encoding)

    assert b"UnicodeEncodeError" not in done.stderr, done.stderr
    written = done.stdout.decode(encoding)
    assert ("größe" in written) == (encoding != "ascii")
    assert ("\\ud83d\\ude80" in written) == (encoding != "utf-8")


def test_escapes_are_those_of_json() -> None:
    text = json.dumps({"name": "größe \U0001f680 \udcff"}, ensure_ascii=False)

    read: dict[str, Any] = json.loads(text.encode("ascii", "refold.escaped"))

    assert read == {"name": "größe \U0001f680 \udcff"}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (NotADirectoryError, "Not a directory"),
        (FileExistsError, "File exists"),
        (PermissionError, "Permission denied"),
        (OSError, "Read-only file system"),
    ],
)
def test_a_place_that_cannot_be_used_is_one_line_and_the_way_out(
    kind: type[OSError], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    number = {NotADirectoryError: 20, FileExistsError: 17, PermissionError: 13, OSError: 30}[kind]

    code = errors.report(kind(number, words, "/data"))

    written = capsys.readouterr().err
    assert (code, written.splitlines()[0]) == (1, f"error: /data cannot be used: {words}")
    assert "--data" in written


def test_refold_dev_on_a_data_folder_that_is_a_file_has_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "data").touch()

    done = refold("dev", "--data", str(tmp_path / "data"))

    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert str(tmp_path / "data").encode() in done.stderr
