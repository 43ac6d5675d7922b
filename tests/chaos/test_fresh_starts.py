"""The first `refold dev` of a folder comes up, however busy the machine is."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

STARTS = 30
BUSY = 2
READY_S = 180


@pytest.fixture
def busy() -> Iterator[None]:
    """Two loops that take all of two cores."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.campaign
@pytest.mark.timeout(2 * READY_S)
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("number", range(STARTS))
def test_a_fresh_folder_comes_up_beside_busy_loops(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "refold", "dev", "--data", str(tmp_path / f"fresh-{number}")]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path) as dev:
        late = threading.Timer(READY_S, dev.send_signal, [signal.SIGTERM])
        late.start()
        assert dev.stdout
        for line in dev.stdout:
            lines.append(line)
            if line.startswith("ready after"):
                late.cancel()
                dev.send_signal(signal.SIGTERM)
        code = dev.wait()
        late.cancel()

    assert any(line.startswith("ready after") for line in lines), "".join(lines)
    assert code == 0, "".join(lines)
