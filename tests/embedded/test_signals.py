"""A signal may come at any instruction of the wait for it."""

from __future__ import annotations

import subprocess
import sys

EVERYWHERE = """
import signal
import sys
from refold.embedded.signals import stop_signals

def at(place):
    # Deliver SIGTERM before instruction `place` of what runs from here on; tell whether it is that long.
    left = place
    def step(frame, event, argument):
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == -1:
                signal.raise_signal(signal.SIGTERM)
        return step
    hurried = []
    with stop_signals(lambda: hurried.append(1)) as asked:
        sys.settrace(step)
        asked.wait(0)
        sys.settrace(None)
        came = left < 0
        assert asked.wait(0 if not came else 20) == came, place
    return came

place = 0
while at(place):
    place += 1
print(place)
"""


def test_a_signal_within_the_wait_for_it_is_taken() -> None:
    ran = subprocess.run([sys.executable, "-c", EVERYWHERE], capture_output=True, text=True, timeout=60, check=False)

    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 10
