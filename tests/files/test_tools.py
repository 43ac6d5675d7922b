"""File tools: what they find, what limits them, and what is known of a write of which nobody has heard."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from refold import DID_NOT_HAPPEN, App, CallFailed, Context
from refold.contrib.files import file_tools, folder, jail
from refold.contrib.files.folder import Folder, content_digest, split_pattern
from refold.contrib.files.jail import Jail
from refold.core.errors import NotDone, TerminalError
from refold.testing import crash_matrix, run
from refold.testing.contracts import PureContract

MOST = 10_000
OLD, NEW = "pool = 5\nname = a\n", "pool = 10\nname = a\n"


@pytest.fixture
def files(tmp_path: Path) -> Folder:
    """Give a folder with a file."""
    (tmp_path / "a.toml").write_text(OLD)
    return Folder(Jail(tmp_path, hidden=False), MOST)


def named(text: str) -> str:
    """The digest of a text."""
    return content_digest(text.encode())


class TestReading:
    def test_a_file_is_read_with_what_names_its_content(self, files: Folder) -> None:
        assert files.read("a.toml").model_dump() == {"path": "a.toml", "text": OLD, "digest": named(OLD)}

    def test_what_is_too_large_or_no_text_is_refused(self, tmp_path: Path, files: Folder) -> None:
        (tmp_path / "large").write_bytes(b"x" * (MOST + 1))
        (tmp_path / "bytes").write_bytes(b"\xff\xfe")

        for path, why in (("large", "more than 10,000 bytes"), ("bytes", "not text in UTF-8"), ("none", "there is no")):
            with pytest.raises(TerminalError, match=why):
                files.read(path)

    def test_a_folder_that_is_not_there_may_be_there_later(self, tmp_path: Path) -> None:
        later = Folder(Jail(tmp_path / "later", hidden=False), MOST)

        for use in (lambda: later.read("a"), lambda: later.list("."), lambda: later.write("a", "b", "")):
            with pytest.raises(NotDone, match="No such file"):
                use()

    def test_ends_of_lines_stay_as_they_are(self, tmp_path: Path, files: Folder) -> None:
        (tmp_path / "dos.txt").write_bytes(b"a\r\nb\r\n")

        assert files.read("dos.txt").text == "a\r\nb\r\n"

    def test_a_long_list_is_cut_and_says_so(
        self, tmp_path: Path, files: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(folder, "LISTED", 2)
        for name in ("b", "c"):
            (tmp_path / name).touch()

        assert (len(files.list(".").entries), files.list(".").complete) == (2, False)

    def test_a_search_gives_lines_and_says_when_there_are_more(
        self, tmp_path: Path, files: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "b.md").write_text("one\nPOOL of cars\n" + "pool\n" * 3)

        found = files.search("pool", "**/*.md", ignore_case=True)
        assert [(hit.path, hit.line, hit.text) for hit in found.hits[:2]] == [
            ("sub/b.md", 2, "POOL of cars"),
            ("sub/b.md", 3, "pool"),
        ]
        assert (len(found.hits), found.complete) == (4, True)
        assert [hit.path for hit in files.search("name", "*", ignore_case=False).hits] == ["a.toml"]
        monkeypatch.setattr(folder, "FOUND", 3)
        assert (len(files.search("pool", "**", ignore_case=True).hits)) == 3
        assert not files.search("pool", "**", ignore_case=True).complete
        with pytest.raises(TerminalError, match="within a line"):
            files.search("a\nb", "**", ignore_case=False)

    def test_a_pass_over_too_much_ends_and_says_so(
        self, tmp_path: Path, files: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(folder, "SEEN", 10)
        (tmp_path / "many").mkdir()
        for number in range(30):
            (tmp_path / "many" / f"f{number}").write_text("x")

        assert not files.find("**").complete
        assert not files.search("x", "**", ignore_case=False).complete

    def test_folders_in_each_other_end_somewhere(self, tmp_path: Path, files: Folder) -> None:
        deep = tmp_path.joinpath(*["d"] * (jail.DEEPEST + 2))
        deep.mkdir(parents=True)
        (deep / "f").touch()

        found = files.find("**/f")

        assert (found.paths, found.complete) == ([], False)

    @pytest.mark.parametrize(
        ("pattern", "path", "fits"),
        [
            ("**", "a", True),
            ("**", "a/b/c", True),
            ("*", "a", True),
            ("*", "a/b", False),
            ("**/*.py", "a.py", True),
            ("**/*.py", "x/y/a.py", True),
            ("**/*.py", "x/y/a.pyc", False),
            ("docs/**", "docs/a/b", True),
            ("docs/**", "docs", False),
            ("docs/**", "doc/a", False),
            ("a/**/b", "a/b", True),
            ("a/**/b", "a/x/y/b", True),
            ("a/**/b", "a/x/y/c", False),
            ("**/a/**/b", "a/a/b/b", True),
            ("[ab].t?t", "b.txt", True),
            ("[ab].t?t", "c.txt", False),
        ],
    )
    def test_a_pattern_fits_as_in_a_shell(self, pattern: str, path: str, fits: bool) -> None:
        assert folder.path_fits(tuple(path.split("/")), split_pattern(pattern)) is fits

    @pytest.mark.parametrize("pattern", ["/etc/*", "../*", "", "x" * 301])
    def test_a_pattern_of_elsewhere_is_refused(self, pattern: str) -> None:
        with pytest.raises(TerminalError, match="is not a pattern"):
            split_pattern(pattern)

    def test_no_pattern_takes_long(self) -> None:
        hostile = split_pattern("/".join(["**", "*a*a*a*a*a*a*b"] * 10))

        assert not folder.path_fits(tuple(["a" * 150] * jail.DEEPEST), hostile)


class TestWriting:
    def test_a_write_replaces_what_was_looked_at_and_nothing_else(self, tmp_path: Path, files: Folder) -> None:
        (tmp_path / "a.toml").chmod(0o640)

        written = files.write("a.toml", NEW, named(OLD))

        assert (written.digest, (tmp_path / "a.toml").read_text()) == (named(NEW), NEW)
        assert (tmp_path / "a.toml").stat().st_mode & 0o777 == 0o640
        with pytest.raises(TerminalError, match="not what it was"):
            files.write("a.toml", "other", named(OLD))
        with pytest.raises(TerminalError, match="there already"):
            files.write("a.toml", "other", "")
        with pytest.raises(TerminalError, match="not what it was"):
            files.write("gone.toml", "other", named(OLD))
        assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]

    def test_a_new_file_may_be_in_new_folders(self, tmp_path: Path, files: Folder) -> None:
        files.write("x/y/new.txt", "new", "")

        assert (tmp_path / "x" / "y" / "new.txt").read_text() == "new"

    def test_an_edit_changes_one_place(self, tmp_path: Path, files: Folder) -> None:
        files.edit("a.toml", "pool = 5", "pool = 10", named(OLD))

        assert (tmp_path / "a.toml").read_text() == NEW
        with pytest.raises(TerminalError, match="not what it was"):
            files.edit("a.toml", "name", "title", named(OLD))
        with pytest.raises(TerminalError, match="more than once"):
            files.edit("a.toml", "a", "b", named(NEW))
        with pytest.raises(TerminalError, match="stands nowhere"):
            files.edit("a.toml", "nothing", "b", named(NEW))
        with pytest.raises(TerminalError, match="a line beside it"):
            files.edit("a.toml", "name", "", named(NEW))

    def test_places_that_overlap_are_several(self, tmp_path: Path, files: Folder) -> None:
        (tmp_path / "b.txt").write_text("aaa")

        with pytest.raises(TerminalError, match="more than once"):
            files.edit("b.txt", "aa", "b", named("aaa"))

    def test_what_would_be_too_large_is_not_written(self, tmp_path: Path, files: Folder) -> None:
        with pytest.raises(TerminalError, match="more than 10,000"):
            files.write("a.toml", "ä" * 5_001, named(OLD))
        with pytest.raises(TerminalError, match="more than 10,000"):
            files.edit("a.toml", "pool", "x" * MOST, named(OLD))
        assert (tmp_path / "a.toml").read_text() == OLD

    def test_a_write_again_changes_nothing_and_its_probe_knows_it(self, files: Folder) -> None:
        assert files.written("a.toml", NEW, named(OLD)) is None
        first = files.write("a.toml", NEW, named(OLD))

        assert files.write("a.toml", NEW, named(OLD)) == first
        assert files.written("a.toml", NEW, named(OLD)) == first
        files.write("a.toml", "of somebody else", named(NEW))
        with pytest.raises(RuntimeError, match="nobody can say"):
            files.written("a.toml", NEW, named(OLD))

    def test_an_edit_that_leaves_its_own_words_is_made_once(self, tmp_path: Path, files: Folder) -> None:
        """The new text holds the old one: who looked for that alone would put it in again and again."""
        before, after = "pool = 5", "pool = 5\nspare = 1"
        assert files.edited("a.toml", before, after, named(OLD)) is None
        first = files.edit("a.toml", before, after, named(OLD))

        assert files.edit("a.toml", before, after, named(OLD)) == first
        assert files.edited("a.toml", before, after, named(OLD)) == first
        assert (tmp_path / "a.toml").read_text().count("spare") == 1
        files.edit("a.toml", "name = a", "name = b", first.digest)
        with pytest.raises(RuntimeError, match="nobody can say"):
            files.edited("a.toml", before, after, named(OLD))

    def test_a_probe_of_a_file_that_is_gone_says_nothing(self, tmp_path: Path, files: Folder) -> None:
        (tmp_path / "a.toml").unlink()

        with pytest.raises(RuntimeError, match="nobody can say"):
            files.written("a.toml", NEW, named(OLD))
        assert files.written("a.toml", NEW, "") is None

    def test_of_two_writes_at_once_one_counts(self, tmp_path: Path, files: Folder) -> None:
        for number in range(50):
            now = files.read("a.toml").digest
            barrier = threading.Barrier(2)

            def write(text: str, *, now: str = now, barrier: threading.Barrier = barrier) -> bool:
                barrier.wait()
                try:
                    files.write("a.toml", text, now)
                except TerminalError:
                    return False
                return True

            with ThreadPoolExecutor(2) as threads:
                done = list(threads.map(write, (f"one {number}", f"two {number}")))
            assert sorted(done) == [False, True]

    def test_a_write_that_cannot_be_made_says_that_nothing_happened(
        self, tmp_path: Path, files: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(folder.os, "fsync", full)  # type: ignore[attr-defined]
        with pytest.raises(NotDone, match="No space left"):
            files.write("a.toml", NEW, named(OLD))

        assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]
        assert (tmp_path / "a.toml").read_text() == OLD

    def test_what_a_crash_has_left_is_shown_to_nobody_and_taken_away(self, tmp_path: Path, files: Folder) -> None:
        (tmp_path / ".a.toml.draft").write_text("half of it")

        assert [entry.name for entry in files.list(".").entries] == ["a.toml"]
        files.write("a.toml", NEW, named(OLD))
        assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]

    def test_a_draft_that_somebody_has_put_there_leads_nowhere(self, tmp_path: Path) -> None:
        root, outside = tmp_path / "root", tmp_path / "outside.txt"
        root.mkdir()
        outside.write_text("untouched")
        (root / ".a.toml.draft").symlink_to(outside)

        Folder(Jail(root, hidden=False), MOST).write("a.toml", NEW, "")

        assert (outside.read_text(), (root / "a.toml").read_text()) == ("untouched", NEW)
        assert not (root / "a.toml").is_symlink()

    def test_whoever_waits_too_long_for_another_write_may_try_again(
        self, tmp_path: Path, files: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jail, "LOCKED_S", 0.05)
        with Jail(tmp_path, hidden=False).locked(), pytest.raises(NotDone, match="another write"):
            files.write("a.toml", NEW, named(OLD))


class TestTools:
    def app(self, root: Path) -> App:
        """An app whose agent reads, edits and writes."""
        made = App("files")
        files = file_tools(made, root, write=True)
        edit = files.edit_file
        assert edit is not None

        @made.agent
        async def editor(ctx: Context) -> Any:
            found, listed = await asyncio.gather(
                ctx.call("read_file", path="a.toml"), ctx.call("find_files", pattern="**")
            )
            edited = await ctx.call(
                "edit_file", path="a.toml", before="pool = 5", after="pool = 10", expect=found["digest"]
            )
            await ctx.call("write_file", path="log/changes.txt", content=edited["digest"])
            try:
                await ctx.call("read_file", path="../a.toml")
            except CallFailed as failure:
                return [listed["paths"], failure.fields["code"]]
            return "it has left the folder"

        return made

    def test_an_agent_works_on_files(self, tmp_path: Path) -> None:
        (tmp_path / "a.toml").write_text(OLD)

        done = run(self.app(tmp_path), "editor")

        assert done.value == [["a.toml"], "terminal"]
        assert (tmp_path / "a.toml").read_text() == NEW
        assert (tmp_path / "log" / "changes.txt").read_text() == named(NEW)

    def test_whatever_is_killed_every_file_is_written_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written: list[str] = []
        replace = os.replace

        def counting(source: str, target: str, **more: Any) -> None:
            written.append(target)
            replace(source, target, **more)

        monkeypatch.setattr(folder.os, "replace", counting)  # type: ignore[attr-defined]

        def fresh() -> dict[str, Any]:
            (tmp_path / "a.toml").write_text(OLD)
            (tmp_path / "log" / "changes.txt").unlink(missing_ok=True)
            return {}

        report = crash_matrix(self.app(tmp_path), "editor", {}, tools=fresh, effects=lambda: len(written))

        assert not report.doubts
        assert len(written) > 4

    def test_the_tools_say_what_they_are(self, tmp_path: Path) -> None:
        made = App("two")
        file_tools(made, tmp_path, write=True, approval="required", prefix="shop_")
        file_tools(made, tmp_path, pool="disk")

        assert {name: (tool.effect, tool.approval, tool.pool) for name, tool in made.tools.items()} == {
            "shop_read_file": ("pure", "policy", "default"),
            "shop_list_files": ("pure", "policy", "default"),
            "shop_find_files": ("pure", "policy", "default"),
            "shop_search_files": ("pure", "policy", "default"),
            "shop_write_file": ("probed", "required", "default"),
            "shop_edit_file": ("probed", "required", "default"),
            "read_file": ("pure", "policy", "disk"),
            "list_files": ("pure", "policy", "disk"),
            "find_files": ("pure", "policy", "disk"),
            "search_files": ("pure", "policy", "disk"),
        }
        assert made.tools["shop_edit_file"].shown_as == "edit"
        probe = made.tools["shop_write_file"].probe
        assert probe is not None
        assert probe("x", "y", "") is DID_NOT_HAPPEN


PURE = App("pure")
file_tools(PURE, Path(__file__).parent)


class Reading(PureContract):
    """What all tools that read promise."""

    app = PURE

    def effects(self) -> int:
        return len(list(Path(__file__).parent.iterdir()))


class TestRead(Reading):
    tool, args = "read_file", {"path": "test_tools.py"}


class TestList(Reading):
    tool, args = "list_files", {}


class TestFind(Reading):
    tool, args = "find_files", {"pattern": "*.py"}


class TestSearch(Reading):
    tool, args = "search_files", {"text": "def test", "pattern": "*.py"}
