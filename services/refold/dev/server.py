"""Life cycle of the embedded servers."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Self

from refold.core.errors import RefoldError, UnreachableError, UsageError
from refold.dev import process
from refold.dev.process import Process

_POLL_S = 0.02
_LONGEST_START = timedelta(seconds=60)


class EmbeddedServer(ABC):
    """Server as a child process on a folder, whose data survives restarts. Tests call `start` and `stop`; the
    supervisor calls `prepare`, runs `command()` and calls `wait_ready`."""

    name: ClassVar[str]
    grace: timedelta = timedelta(seconds=10)

    def __init__(self, data_dir: Path, *, log: Path | None = None) -> None:
        self.data_dir = data_dir.resolve()
        self.log = log or self.data_dir / f"{self.name}.log"
        self._process: Process | None = None

    @property
    def store(self) -> Path:
        return self.data_dir / "store"

    @abstractmethod
    def prepare(self) -> None:
        """Write the files that `command` needs; existing data is not changed."""

    @abstractmethod
    def command(self) -> list[str]:
        """Command line of the server."""

    @abstractmethod
    def answers(self) -> bool:
        """True if the server takes reads and writes."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise UsageError(f"the embedded {self.name} is not running", hint="call start() first")
        return self._process.pid

    def start(self) -> Self:
        """Start the server and wait for it. **Raises** UsageError if it runs already, RefoldError if it fails."""
        self.launch()
        try:
            self.wait_ready(alive=lambda: self.running)
        except BaseException:
            self.kill()
            raise
        return self

    def launch(self) -> None:
        """Start the process without waiting. **Raises** UsageError if it runs already."""
        if self.running:
            raise UsageError(f"the embedded {self.name} runs already as process {self.pid}")
        self.prepare()
        self._process = process.spawn(self.command(), log=self.log)

    def wait_ready(self, *, alive: Callable[[], bool] = lambda: True) -> None:
        """Wait until the server answers. **Raises** RefoldError if it ends, UnreachableError after a minute."""
        deadline = time.monotonic() + _LONGEST_START.total_seconds()
        while not self.answers():
            facts = {"log": str(self.log), "tail": process.tail(self.log)}
            if not alive():
                raise RefoldError(f"the embedded {self.name} ended while starting", hint=f"see {self.log}", **facts)
            if time.monotonic() > deadline:
                message = f"the embedded {self.name} does not answer after {_LONGEST_START}"
                raise UnreachableError(message, hint=f"see {self.log}", **facts)
            time.sleep(_POLL_S)

    def stop(self) -> None:
        if self._process is not None:
            process.end(self._process, grace=self.grace)
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            process.kill(self._process)
            self._process = None

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
