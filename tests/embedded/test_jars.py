"""The jar cache: checked by hash, mended when damaged, clear when there is no network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from refold.core.errors import RefoldError, UnreachableError, UsageError
from refold.dev.jars import Jar, fetch_jars, read_lock


@pytest.fixture(scope="session")
def small_jar() -> Jar:
    """Give the smallest jar of the lock, 4 KB."""
    return next(jar for jar in read_lock() if jar.artifact == "jspecify")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send all downloads to a port where nobody listens."""
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_the_lock_names_46_jars_with_distinct_files() -> None:
    jars = read_lock()

    assert len(jars) == 46
    assert len({jar.filename for jar in jars}) == 46
    assert "org.apache.kafka:kafka_2.13:4.3.1" in map(str, jars)


def test_a_lock_line_without_a_hash_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text("org.jspecify:jspecify:1.0.0\n")

    with pytest.raises(UsageError, match="line 1 of jars.lock"):
        read_lock(lock)


def test_a_damaged_jar_is_fetched_again(tmp_path: Path, small_jar: Jar) -> None:
    said: list[tuple[str, int, int]] = []
    (path,) = fetch_jars(tmp_path, jars=[small_jar])
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"!")

    (again,) = fetch_jars(tmp_path, jars=[small_jar], progress=lambda *step: said.append(step))

    assert again == path
    assert path.read_bytes() == good
    assert said[-1] == ("fetching Kafka", 1, 1)


def test_jars_that_are_there_need_no_network(tmp_path: Path, small_jar: Jar, request: pytest.FixtureRequest) -> None:
    fetch_jars(tmp_path, jars=[small_jar])
    request.getfixturevalue("no_network")

    assert fetch_jars(tmp_path, jars=[small_jar])[0].is_file()


@pytest.mark.usefixtures("no_network")
def test_without_network_the_error_says_what_to_do(tmp_path: Path, small_jar: Jar) -> None:
    with pytest.raises(UnreachableError, match="org.jspecify:jspecify:1.0.0.*REFOLD_CACHE"):
        fetch_jars(tmp_path, jars=[small_jar])


def test_a_jar_that_differs_from_the_lock_does_not_enter_the_cache(tmp_path: Path, small_jar: Jar) -> None:
    forged = replace(small_jar, sha256="0" * 64)

    with pytest.raises(RefoldError, match="does not have the SHA-256"):
        fetch_jars(tmp_path, jars=[forged])

    assert [path.name for path in (tmp_path / "jars").iterdir()] == [".lock"]
