"""A client that a process has used, in a fork of that process."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORKS = """
import asyncio, os, sys, time
from refold import UsageError
from refold.client import AsyncClient, Client

def use(client):
    call = client.agents()
    if asyncio.iscoroutine(call):
        asyncio.run(call)

client = CLASS(kafka="127.0.0.1:9")
if USED:
    try:
        use(client.of("ada"))
    except Exception as error:
        print(type(error).__name__, flush=True)
child = os.fork()
if not child:
    for each in (client, client.of("bob")):
        try:
            use(each)
        except Exception as error:
            print(type(error).__name__, flush=True)
    closes = client.close()
    if asyncio.iscoroutine(closes):
        asyncio.run(closes)
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.parametrize("name", ["Client", "AsyncClient"])
@pytest.mark.parametrize("used", [True, False])
def test_a_fork_is_refused_a_client_that_its_parent_has_used(name: str, used: bool) -> None:
    code = FORKS.replace("CLASS", name).replace("USED", str(used))

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)

    expected = ["UnreachableError", "UsageError", "UsageError", "7"] if used else ["UnreachableError"] * 2 + ["7"]
    assert done.stdout.split() == expected, done.stderr
