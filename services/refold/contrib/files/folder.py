"""Operations on files of a folder, within limits: every answer fits a record, every pass ends. Shell patterns are
matched name by name, so that none takes long."""

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from fnmatch import translate
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from typing import Literal, NamedTuple

from pydantic import BaseModel

from refold.contrib.files.jail import DEEPEST, LONGEST, NAME_BYTES, Jail, MissingError, Parts, read_below
from refold.core.errors import NotDone, TerminalError

LISTED, FOUND, SEEN, LINE = 1_000, 200, 20_000, 300
"""Most entries of a list, hits of a search and entries of a pass; characters of a shown line."""
SEARCHED_BYTES = 64 << 20
"""Bytes that one search reads: a second of a slow disk."""
AFTERS = 2_000
"""Places that are tried to detect an edit; beyond them its outcome is unknown."""
PATTERN = 300
"""Characters of a pattern."""

_ANY = "**"

FileKind = Literal["file", "folder", "other"]


class FileText(BaseModel):
    """Text of a file. A write with this `digest` is refused if the file has changed since."""

    path: str
    text: str
    digest: str


class InFolder(BaseModel):
    """Entry of a folder. `other` are links, devices and pipes, which these tools do not open. `bytes` is of files."""

    name: str
    kind: FileKind
    bytes: int = 0


class FolderList(BaseModel):
    """Entries of a folder, by name. `complete`: these are all."""

    entries: list[InFolder]
    complete: bool


class Paths(BaseModel):
    """Paths of files that match a pattern, in order. `complete`: these are all."""

    paths: list[str]
    complete: bool


class Hit(BaseModel):
    """Line that has the text of a search; the first `line` is 1."""

    path: str
    line: int
    text: str


class Hits(BaseModel):
    """Result of a search, in order. `complete`: these are all, and every file that matches was read."""

    hits: list[Hit]
    complete: bool


class Written(BaseModel):
    """Result of a write or an edit, with the digest of the new content."""

    path: str
    digest: str


class _Visited(NamedTuple):
    """A file of a `Walk`, and the descriptor of its open folder."""

    parts: Parts
    folder: int


class Walk:
    """Pass over all files below a folder, by name; `complete` if no limit ended it."""

    def __init__(self, jail: Jail) -> None:
        self._jail, self._left, self.complete = jail, SEEN, True

    def __iter__(self) -> Iterator[_Visited]:
        with self._jail.folder(()) as root:
            yield from self._files_below(root, ())

    def _files_below(self, folder: int, parts: Parts) -> Iterator[_Visited]:
        entries = list(islice(_entries_of(folder, self._jail), self._left + 1))
        self._left -= len(entries)
        if self._left < 0 or len(parts) >= DEEPEST or len("/".join(parts)) > LONGEST - NAME_BYTES:
            self.complete = False
            return
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.kind == "file":
                yield _Visited((*parts, entry.name), folder)
            elif entry.kind == "folder" and self._left >= 0:
                with suppress(TerminalError), self._jail.folder((entry.name,), above=folder) as inner:
                    yield from self._files_below(inner, (*parts, entry.name))


class Folder:
    """Files below a folder. **Units**: `most` is the size limit of a file in bytes. **Raises** TerminalError."""

    def __init__(self, jail: Jail, most: int) -> None:
        self._jail, self._most = jail, most

    def read(self, path: str) -> FileText:
        data, _ = self._read_file(path)
        return FileText(path=path, text=_decoded(path, data), digest=content_digest(data))

    def list(self, path: str) -> FolderList:
        with self._jail.folder(self._jail.parts(path)) as folder:
            listed = list(islice(_entries_of(folder, self._jail), LISTED + 1))
        entries = sorted(listed, key=lambda entry: entry.name)[:LISTED]
        return FolderList(entries=entries, complete=len(listed) <= LISTED)

    def find(self, pattern: str) -> Paths:
        names, walk = split_pattern(pattern), Walk(self._jail)
        paths = list(islice(("/".join(file.parts) for file in walk if path_fits(file.parts, names)), FOUND + 1))
        return Paths(paths=paths[:FOUND], complete=walk.complete and len(paths) <= FOUND)

    def search(self, text: str, pattern: str, *, ignore_case: bool) -> Hits:
        if not text or "\n" in text:
            raise TerminalError("a search is for a text within a line")
        names, walk, hits, left = split_pattern(pattern), Walk(self._jail), list[Hit](), SEARCHED_BYTES
        complete, sought = True, text.casefold() if ignore_case else text
        for file in walk:
            if not path_fits(file.parts, names):
                continue
            try:
                data, _ = read_below(file.folder, file.parts[-1], self._most)
                left -= len(data)
                content = data.decode()
            except TerminalError:
                complete = False
                continue
            except UnicodeDecodeError:
                content = ""  # no text
            for number, line in enumerate(content.split("\n"), 1):
                if sought in (line.casefold() if ignore_case else line):
                    hits.append(Hit(path="/".join(file.parts), line=number, text=line.rstrip("\r")[:LINE]))
                    if len(hits) > FOUND:
                        return Hits(hits=hits[:FOUND], complete=False)
            if left < 0:
                return Hits(hits=hits, complete=False)
        return Hits(hits=hits, complete=complete and walk.complete)

    def write(self, path: str, content: str, expect: str) -> Written:
        """Write a file if its digest is `expect` (empty: no file). **Raises** NotDone without space or lock."""
        data, parts = self._encoded(content), self._file_parts(path)
        before: bytes | None = None
        mode: int | None = None
        with self._jail.locked(), self._jail.folder(parts[:-1], make=not expect) as folder:
            with suppress(MissingError):
                before, mode = read_below(folder, parts[-1], self._most)
            # An attempt after a crash finds its own content: refused by `expect`, it would fail a write that happened.
            if before != data:
                _refuse_changed(path, "" if before is None else content_digest(before), expect)
                _write_atomically(folder, parts[-1], data, mode)
        return Written(path=path, digest=content_digest(data))

    def written(self, path: str, content: str, expect: str) -> Written | None:
        """Return the written file; None if the write did not happen. **Raises** RuntimeError if that is unknown."""
        data, now = self._encoded(content), ""
        with suppress(MissingError):
            now = content_digest(self._read_file(path)[0])
        if now == content_digest(data):
            return Written(path=path, digest=now)
        if now != expect:
            raise RuntimeError(f"somebody else has changed {path}: whether this write was there before, nobody can say")
        return None

    def edit(self, path: str, before: str, after: str, expect: str) -> Written:
        """Replace `before` by `after`; it must occur once in the file with digest `expect`. **Raises** as `write`."""
        if not before or not after or before == after:
            hint = "to take text away, name a line beside it that stays, before and after"
            raise TerminalError("an edit puts some text in the place of some other", hint=hint)
        parts = self._file_parts(path)
        with self._jail.locked(), self._jail.folder(parts[:-1]) as folder:
            data, mode = read_below(folder, parts[-1], self._most)
            text = _decoded(path, data)
            if content_digest(data) == expect:
                if (place := text.find(before)) < 0 or text.find(before, place + 1) >= 0:
                    often = "more than once" if place >= 0 else "nowhere"
                    raise TerminalError(f"the text stands {often} in {path}", hint="name more of what is around")
                data = self._encoded(text.replace(before, after))
                _write_atomically(folder, parts[-1], data, mode)
            # As in `write`: the edit may be there already, of an attempt before a crash.
            elif not _has_edit(text, before, after, expect):
                _refuse_changed(path, content_digest(data), expect)
        return Written(path=path, digest=content_digest(data))

    def edited(self, path: str, before: str, after: str, expect: str) -> Written | None:
        """Return the edited file; None if the edit did not happen. **Raises** RuntimeError if that is unknown."""
        data, _ = self._read_file(path)
        if content_digest(data) == expect:
            return None
        if not _has_edit(_decoded(path, data), before, after, expect):
            raise RuntimeError(f"somebody else has changed {path}: whether this edit was there before, nobody can say")
        return Written(path=path, digest=content_digest(data))

    def _file_parts(self, path: str) -> Parts:
        parts = self._jail.parts(path)
        if not parts:
            raise TerminalError(f"{path!r} names no file")
        return parts

    def _read_file(self, path: str) -> tuple[bytes, int]:
        parts = self._file_parts(path)
        with self._jail.folder(parts[:-1]) as folder:
            return read_below(folder, parts[-1], self._most)

    def _encoded(self, content: str) -> bytes:
        data = content.encode()
        if len(data) > self._most:
            raise TerminalError(f"the content has {len(data):,} bytes, more than {self._most:,}")
        return data


def content_digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def _has_edit(text: str, before: str, after: str, expect: str) -> bool:
    """True if the text, with this edit reversed at some place, has the digest `expect`."""
    place = text.find(after)
    for _ in range(AFTERS):
        if place < 0:
            return False
        if content_digest((text[:place] + before + text[place + len(after) :]).encode()) == expect:
            return True
        place = text.find(after, place + 1)
    return False


def _entries_of(folder: int, jail: Jail) -> Iterator[InFolder]:
    with os.scandir(folder) as listing:
        for entry in listing:
            if not jail.shows(entry.name):
                continue
            with suppress(FileNotFoundError):  # it went just now
                status = entry.stat(follow_symlinks=False)
                kind: FileKind = "file" if stat.S_ISREG(status.st_mode) else "other"
                kind = "folder" if stat.S_ISDIR(status.st_mode) else kind
                yield InFolder(name=entry.name, kind=kind, bytes=status.st_size if kind == "file" else 0)


def _refuse_changed(path: str, now: str, expect: str) -> None:
    if now != expect:
        reason = "is not what it was when it was looked at" if expect else "is there already"
        raise TerminalError(f"{path} {reason}", hint="read it again, and decide anew")


def _decoded(path: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise TerminalError(f"{path} is not text in UTF-8") from None


def _write_atomically(folder: int, name: str, data: bytes, mode: int | None) -> None:
    # A fixed name: the next write removes the draft of a crashed one, under the same lock.
    draft = f".{name}.draft"
    try:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        # Exclusive: a link that another process puts there meanwhile would lead the write out of the folder.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(draft, flags, 0o666, dir_fd=folder), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            # Before the rename: a power cut could otherwise leave the final name with half of the content.
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise NotDone(f"{name!r} cannot be written: {error.strerror}") from None
    os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def split_pattern(pattern: str) -> tuple[str, ...]:
    """Names of a pattern; `**` is any number of folders, at the end everything below. **Raises** TerminalError."""
    names = tuple(name for name in pattern.split("/") if name not in ("", "."))
    if pattern.startswith("/") or ".." in names or not names or len(pattern) > PATTERN:
        hint = "as **/*.py: * is any part of a name, ** any number of folders"
        raise TerminalError(f"{pattern[:200]!r} is not a pattern of paths below the folder", hint=hint)
    return (*names, "*") if names[-1] == _ANY else names


def path_fits(parts: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """True if a path matches a split pattern."""
    # Positions in the pattern after each name: linear, where backtracking could take exponential time.
    reached = {0} | _after_any(names, 0)
    for name in parts:
        following = set[int]()
        for place in reached:
            if place < len(names) and names[place] == _ANY:
                following |= {place}
            elif place < len(names) and _name_matcher(names[place])(name):
                following |= {place + 1}
        reached = following.union(*(_after_any(names, place) for place in following))
    return len(names) in reached


def _after_any(names: tuple[str, ...], place: int) -> set[int]:
    """Positions behind each `**` from `place` on, which may match no folder."""
    places = set[int]()
    while place < len(names) and names[place] == _ANY:
        place += 1
        places.add(place)
    return places


@lru_cache(maxsize=256)
def _name_matcher(name: str) -> Callable[[str], object]:
    return re.compile(translate(name)).match
