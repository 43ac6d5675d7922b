"""Jars of Apache Kafka, downloaded once by exact coordinates and checked against `infra/jars.lock`."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from refold.core.errors import RefoldError, UnreachableError, UsageError
from refold.core.wire.resources import resource
from refold.dev.files import exclusive

Progress = Callable[[str, int, int], None]
"""Callback: current task, steps done, steps in all."""

# A download waits for round trips (two a jar), not for bandwidth: 8 at a time take 4 s in all, 16 no less.
_PARALLEL = 8
_ATTEMPTS = 3
_TIMEOUT_S = 30
# The JVM drops an AOT cache when the modification time of a jar has changed; a fixed one survives a refetch.
_FIXED_MTIME = 1_700_000_000


def silent(action: str, done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def filename(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


def read_lock(path: Path | None = None) -> list[Jar]:
    """Jars of the lock file, in the order of the class path. **Raises** UsageError for a malformed line."""
    path = path or resource("infra", "jars.lock")
    # Nothing is resolved transitively: log4j's dependency management would override Kafka's own versions.
    jars = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        coordinates, _, digest = line.partition(" sha256:")
        parts = coordinates.split(":")
        if len(parts) != 3 or len(digest.strip()) != 64:
            raise UsageError(f"line {number} of {path.name} is not a locked jar", line=line)
        jars.append(Jar(parts[0], parts[1], parts[2], digest.strip()))
    return jars


def fetch_jars(cache: Path, *, jars: Sequence[Jar] | None = None, progress: Progress = silent) -> list[Path]:
    """Paths of all jars, in order of the lock; missing or altered ones are downloaded, by one process at a time.
    **Raises** UnreachableError if a download fails; RefoldError if it differs from the lock (do not retry)."""
    folder = cache / "jars"
    needed = list(read_lock() if jars is None else jars)
    with exclusive(folder / ".lock"):
        missing = [jar for jar in needed if not _is_intact(folder / jar.filename, jar)]
        if missing:
            _download_all(missing, folder, progress)
    return [folder / jar.filename for jar in needed]


def _download_all(jars: list[Jar], folder: Path, progress: Progress) -> None:
    progress("fetching Kafka", 0, len(jars))
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="jars") as pool:
        downloads = [pool.submit(_download, jar, folder) for jar in jars]
        try:
            for done, download in enumerate(as_completed(downloads), start=1):
                download.result()
                progress("fetching Kafka", done, len(jars))
        except BaseException:
            # Otherwise the end of the block waits for all queued downloads.
            pool.shutdown(cancel_futures=True)
            raise


def _download(jar: Jar, folder: Path) -> None:
    # Within the cache, so that one rename puts the jar there: an interrupted download leaves nothing.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as part:
        path = _resolve(jar, Path(part))
        if not _is_intact(path, jar):
            raise RefoldError(
                f"{jar} does not have the SHA-256 of infra/jars.lock",
                hint="do not use it; ask who runs the Maven mirror",
                jar=str(jar),
            )
        os.utime(path, (_FIXED_MTIME, _FIXED_MTIME))
        path.replace(folder / jar.filename)


def _resolve(jar: Jar, part: Path) -> Path:
    # Imported late: it takes 0.3 s, and only the first start on a machine downloads anything.
    from jgo.maven import MavenContext

    reason: Exception | None = None
    for attempt in range(_ATTEMPTS):
        # A fresh folder each time: jgo takes a half-written file for a finished one.
        context = MavenContext(repo_cache=part / str(attempt), timeout=_TIMEOUT_S)
        try:
            artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
            return Path(artifact.resolve())
        except (OSError, RuntimeError) as error:
            reason = error
    raise UnreachableError(
        f"cannot download {jar}",
        hint="the embedded broker needs the network once; check it, or point REFOLD_CACHE at a filled cache",
        jar=str(jar),
    ) from reason


def _is_intact(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest() == jar.sha256
    except FileNotFoundError:
        return False
