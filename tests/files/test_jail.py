"""No path leaves the folder: not by its words, not by links, and not by what is moved while it is opened."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from refold.contrib.files.folder import Folder
from refold.contrib.files.jail import DEEPEST, Jail
from refold.core.errors import NotDone, TerminalError

SECRET = "the keys of the house"
MOST = 10_000


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Give a folder beside the jail, with a secret in it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text(SECRET)
    return folder


@pytest.fixture
def root(tmp_path: Path, outside: Path) -> Path:
    """Give the folder of the jail, with what somebody may have put there to get out."""
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("inside")
    (root / "sub" / "b.txt").write_text("inside, too")
    (root / "link.txt").symlink_to(outside / "secret.txt")
    (root / "linked").symlink_to(outside)
    (root / "around").symlink_to(root / "sub")
    (root / ".env").write_text(SECRET)
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text(SECRET)
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture
def folder(root: Path) -> Folder:
    """Give the tools' folder."""
    return Folder(Jail(root, hidden=False), MOST)


PATHS = [
    "/etc/passwd",
    "../outside/secret.txt",
    "sub/../../outside/secret.txt",
    "sub/..",
    "..",
    "./../outside/secret.txt",
    "link.txt",
    "linked/secret.txt",
    "around/b.txt",
    ".env",
    ".git/config",
    "./.env",
    "sub/../a.txt",
    "pipe",
    "sub",
    "",
    ".",
    "a.txt/b",
    "a\0.txt",
    "a\u202e.txt",
    "\udc2e\udc2e/outside/secret.txt",
    "no/such/file",
    "x/" * (DEEPEST + 1) + "y",
    "n" * 300,
    "n" * 2_000,
]
USES: dict[str, Callable[[Folder, str], object]] = {
    "read": lambda folder, path: folder.read(path),
    "write": lambda folder, path: folder.write(path, "overwritten", "0" * 64),
    "edit": lambda folder, path: folder.edit(path, "keys", "locks", "0" * 64),
    "edited": lambda folder, path: folder.edited(path, "keys", "locks", "0" * 64),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("path", PATHS, ids=ascii)
def test_a_path_that_is_not_a_file_of_the_folder_is_refused(path: str, use: str, folder: Folder, outside: Path) -> None:
    with pytest.raises(TerminalError) as refused:
        USES[use](folder, path)

    assert SECRET not in str(refused.value)
    assert (outside / "secret.txt").read_text() == SECRET


NEW = [path for path in PATHS if path not in ("no/such/file", "x/" * (DEEPEST + 1) + "y")]


@pytest.mark.parametrize("path", NEW, ids=ascii)
def test_nothing_new_is_written_where_nothing_may_be(path: str, folder: Folder, root: Path, outside: Path) -> None:
    before = sorted(str(each) for each in (*root.rglob("*"), *outside.rglob("*")))

    with pytest.raises(TerminalError):
        folder.write(path, "new", "")

    assert sorted(str(each) for each in (*root.rglob("*"), *outside.rglob("*"))) == before


def test_lists_and_searches_show_what_is_inside_alone(folder: Folder) -> None:
    listed = folder.list(".")
    kinds = {entry.name: entry.kind for entry in listed.entries}

    assert kinds == {"a.txt": "file", "around": "other", "link.txt": "other", "linked": "other", "pipe": "other"} | {
        "sub": "folder"
    }
    assert folder.find("**").paths == ["a.txt", "sub/b.txt"]
    assert folder.search("keys", "**", ignore_case=False).hits == []
    for path in ("linked", "around", "..", "/", ".git", "sub/../.."):
        with pytest.raises(TerminalError):
            folder.list(path)


def test_hidden_files_are_like_others_where_they_are_wanted(root: Path) -> None:
    folder = Folder(Jail(root, hidden=True), MOST)

    assert folder.read(".env").text == SECRET
    assert ".git/config" in folder.find("**").paths
    with pytest.raises(TerminalError):
        folder.read("../outside/secret.txt")


@pytest.fixture
def swapped(root: Path, outside: Path) -> Iterator[Path]:
    """Give a folder that is now a folder of the jail, now a link to the one outside, as fast as somebody can."""
    place, inner, link = root / "swap", root / ".inner", root / ".link"
    inner.mkdir()
    (inner / "secret.txt").write_text("harmless")
    link.symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        for number in count():
            for each in (inner, link):
                try:
                    each.rename(place)
                    place.rename(each)
                except OSError:  # a write has made the folder where none was
                    place.rename(root / f".made{number}")
            if stop.is_set():
                return

    thread = threading.Thread(target=swap)
    thread.start()
    yield place
    stop.set()
    thread.join()


def test_a_folder_that_becomes_a_link_while_it_is_opened_lets_nobody_out(
    folder: Folder, outside: Path, swapped: Path
) -> None:
    read = set()
    for number in range(3_000):
        try:
            read.add(folder.read(f"{swapped.name}/secret.txt").text)
            folder.write(f"{swapped.name}/new{number % 7}.txt", "x", "")
        except (TerminalError, NotDone, FileNotFoundError):
            continue

    assert read <= {"harmless"}
    assert [each.name for each in outside.iterdir()] == ["secret.txt"]


def test_a_file_that_is_a_device_by_the_time_it_is_opened_is_not_read(root: Path, folder: Folder) -> None:
    (root / "null").symlink_to("/dev/null")

    with pytest.raises(TerminalError, match="no ordinary file"):
        folder.read("null")


def test_a_name_that_looks_like_another_one_is_not_used(root: Path, folder: Folder) -> None:
    (root / "a\u200b.txt").write_text("not what it looks like")

    assert "a\u200b.txt" not in [entry.name for entry in folder.list(".").entries]
    assert folder.find("a*").paths == ["a.txt"]
