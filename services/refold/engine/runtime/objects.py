"""Folder or object store by address, for the archive and the blob store."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from refold.core.errors import UnreachableError, UsageError
from refold.core.redaction import public_url, redacted

FOLDER, FOLDER_MODE, FILE_MODE = "file://", 0o700, 0o600
_QUERY = re.compile(r"\?[^\s?]*(?=\s|$)")


def _may_be_plain() -> bool:
    flags = [os.environ.get(f"{cloud}_ALLOW_HTTP", "") for cloud in ("AWS", "AZURE", "GOOGLE")]
    return any(flag.lower() in ("1", "true") for flag in flags)


_CLOUD: dict[str, Any] = {
    # The caller has a thread of its own and tries again: obstore's own three minutes would only hide an outage.
    "retry_config": {"max_retries": 2, "retry_timeout": timedelta(seconds=20)},
    # These options replace those of the environment, and an emulator has no certificate.
    "client_options": {"connect_timeout": "5s", "timeout": "300s", "allow_http": _may_be_plain()},
}

_LOCAL: dict[str, Any] = {"automatic_cleanup": True}  # a folder goes with its last file


class ObjectStore:
    """Store at `file:///folder` (created if missing), `s3://bucket/path` or another obstore address; `purpose` is
    for errors. In a folder, files are on disk before a write returns, and only the owner may read them. **Raises**
    UsageError for an invalid address."""

    def __init__(self, url: str, purpose: str) -> None:
        self.url, self._purpose = public_url(url), purpose
        self._folder = Path(url.removeprefix(FOLDER)) if url.startswith(FOLDER) else None
        try:
            if self._folder is not None:
                self._folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            options = _LOCAL if self._folder is not None else {} if url.startswith("memory:") else _CLOUD
            self.store = from_url(url, **options)
        except (BaseError, ValueError, OSError) as error:
            problem = f"{self.url} is not the address of {purpose}: {_first_line(error)}"
            raise UsageError(problem, hint="write file:///folder or s3://bucket/path") from None

    @contextmanager
    def requests(self, *answers: type[Exception]) -> Iterator[None]:
        """A `with` block of requests. **Raises** UnreachableError, and errors of the types `answers` as they are."""
        try:
            yield
        except (BaseError, OSError) as error:
            # If the folder itself is missing, a file that is not found may still exist.
            if isinstance(error, answers) and self._folder_exists:
                raise
            message = f"the {self._purpose.partition(' ')[2]} {self.url} does not answer: {_first_line(error)}"
            raise UnreachableError(message, hint="check the address of the archive and your rights there") from None

    def put(self, path: str, content: bytes, *, over: bool = False) -> None:
        """Write a file. **Raises** UnreachableError; AlreadyExistsError of obstore unless `over`."""
        with self.requests(AlreadyExistsError):
            if not self._folder_exists:
                raise FileNotFoundError(f"the folder {self._folder} is away")  # created again it would hide its files
            obstore.put(self.store, path, content, mode="overwrite" if over else "create")
            if self._folder is not None:
                _sync(self._folder, self._folder / path)

    @property
    def _folder_exists(self) -> bool:
        return self._folder is None or self._folder.is_dir()


def _sync(root: Path, file: Path) -> None:
    """Flush a file and its folders to disk."""
    # Soon no other copy of the content exists.
    for path in (file, *(folder for folder in file.parents if folder == root or root in folder.parents)):
        number = os.open(path, os.O_RDONLY)
        try:
            if path != root:
                os.fchmod(number, FILE_MODE if path == file else FOLDER_MODE)
            os.fsync(number)
        finally:
            os.close(number)


def _first_line(error: Exception) -> str:
    return _QUERY.sub("", redacted(str(error).partition("\n")[0]))
