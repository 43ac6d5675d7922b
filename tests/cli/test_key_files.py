"""Files of keys: read only if nobody else could have, and only if they are what they should be."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from refold.core.errors import NotFoundError, UsageError
from refold.engine.runtime import keys


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o620, 0o601])
def test_a_key_file_that_others_could_open_is_not_read(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "k.json"
    keys.save(keys.new("vote", "ann"), path)
    path.chmod(mode)

    with pytest.raises(UsageError, match="may be read by others"):
        keys.load(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="files of root are made by root")
@pytest.mark.parametrize(
    ("mode", "read"), [(0o440, True), (0o640, True), (0o460, False), (0o444, False), (0o400, False)]
)
def test_a_secret_that_kubernetes_mounts_is_read_by_the_group_of_its_pod(mode: int, read: bool) -> None:
    """The kubelet makes the files of a Secret root's, and of the group `fsGroup`, which the process of the pod has."""
    with tempfile.TemporaryDirectory() as folder:  # every folder above it lets others through
        Path(folder).chmod(0o755)
        path = Path(folder, "k.json")
        keys.save(keys.new("vote", "ann"), path)
        os.chown(path, 0, 10_001)
        path.chmod(mode)
        child = os.fork()
        if not child:
            os.setgroups([10_001])
            os.setgid(10_001)
            os.setuid(10_001)
            try:
                keys.load(path)
                os._exit(0)
            except UsageError:
                os._exit(1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (0 if read else 1)


def test_a_key_is_made_with_its_mode_whatever_the_process_allows(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keys.save(keys.new("vote", "ann"), tmp_path / "deep" / "k.json")
    finally:
        os.umask(before)

    assert (tmp_path / "deep" / "k.json").stat().st_mode & 0o777 == 0o600


def test_a_key_file_that_is_not_there_or_a_folder_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no key file"):
        keys.load(tmp_path / "nothing.json")
    with pytest.raises(UsageError, match="cannot read"):
        keys.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write"):
        keys.save(keys.new("vote", "ann"), tmp_path / "file" / "k.json")


@pytest.mark.parametrize(
    "change",
    [
        {"d": ""},
        {"d": "AAAA"},
        {"d": "A" * 43},
        {"d": "é" * 43},
        {"d": 1},
        {"x": "A" * 43},
        {"kty": "EC"},
        {"crv": "X25519"},
        {"use": "sig"},
        {"kid": "a/b"},
        {"kid": None},
        {"more": "x"},
    ],
)
def test_a_key_file_with_anything_wrong_in_it_is_not_read(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "k.json"
    keys.save(keys.new("vote", "ann"), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(UsageError, match="is not a key file"):
        keys.load(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"kid":"a","kid":"b"}', "x" * 100_000, "\ufeff{}"])
def test_what_is_no_key_file_at_all_is_not_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "k.json"
    path.touch(mode=0o600)
    path.write_text(text)

    with pytest.raises(UsageError, match="is not a key file"):
        keys.load(path)


@pytest.mark.parametrize("use", ["decision", "vote"])
def test_a_saved_key_is_the_key_that_is_loaded(tmp_path: Path, use: str) -> None:
    key = keys.new(use, "ops.team_1")
    keys.save(key, tmp_path / "k.json")

    assert keys.load(tmp_path / "k.json") == key
    assert keys.new(use, "ops").kid != keys.new(use, "ops").kid
