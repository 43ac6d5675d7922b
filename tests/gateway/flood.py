"""Connections of somebody who means harm, in a process of their own: `python -m tests.gateway.flood PORT KEY`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

CONNECTIONS = 400
AHEAD = "999999"
STREAMS = ("/api/runs/run-1/stream", "/api/runs/run-2/stream?parts=true") * 4


def requests(key: str) -> list[bytes]:
    """A request of each kind: ahead of the view, or never whole."""
    head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
    found = [f"GET {path} HTTP/1.1\r\n{head}Last-Event-ID: {AHEAD}\r\n\r\n" for path in STREAMS]
    found += [
        f"GET {path} HTTP/1.1\r\n{head}Refold-After: run-log/0/{AHEAD}\r\n\r\n" for path in ("/api/runs", "/api/doubts")
    ]
    found += [f"GET /api/runs/run-1 HTTP/1.1\r\n{head}X-Slow: "]
    return [each.encode() for each in found]


async def harm(port: int, request: bytes) -> None:
    """Send it again and again, and read nothing but the end of each connection."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            await reader.read(200)
            await asyncio.sleep(1.0)  # its own pace
            writer.close()


async def flood(port: int, key: str) -> None:
    """All of them at once, for a while at most."""
    kinds = requests(key)
    tasks = [asyncio.create_task(harm(port, kinds[number % len(kinds)])) for number in range(CONNECTIONS)]
    print("ready", flush=True)  # noqa: T201 - whoever measures waits for it
    await asyncio.wait(tasks, timeout=120)


if __name__ == "__main__":
    asyncio.run(flood(int(sys.argv[1]), sys.argv[2]))
