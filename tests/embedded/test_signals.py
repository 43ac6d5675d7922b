"""A signal may come at any instruction of the wait for it."""

from __future__ import annotations

import subprocess
import sys

EVERYWHERE = """
import signal
import sys
from refold.engine.runtime.signals import stop_signals

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

# What a signal does that comes between the last instruction before a wait and the wait: it interrupts nothing.
ELSEWHERE = """
import signal
import threading
import time
from refold.engine.runtime.signals import stop_signals

def signal_me():
    time.sleep(0.5)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

with stop_signals() as asked:
    threading.Thread(target=signal_me, daemon=True).start()
    print(asked.wait(), asked.wait(600))
"""


def say(program: str) -> str:
    """What a Python program says."""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_signal_within_the_wait_for_it_is_taken() -> None:
    assert int(say(EVERYWHERE)) > 10


def test_a_signal_that_interrupts_no_wait_is_taken_all_the_same() -> None:
    assert say(ELSEWHERE) == "True True\n"
