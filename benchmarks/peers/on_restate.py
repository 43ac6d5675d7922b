"""Refold's peer Restate: a handler whose steps are `ctx.run`, one server, one worker process, and a driver.

But for the number of partitions the server has its defaults; its log is synced.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import hypercorn
import hypercorn.asyncio
import restate
from benchmarks.peers import load

service = restate.Service("peer")


@service.handler()
async def run(ctx: restate.Context, steps: int) -> int:
    """So many steps, one after the other."""
    return sum([await ctx.run_typed(f"s{i}", step, i=i) for i in range(steps)])


async def step(i: int) -> int:
    """A step that does nothing. A function that is not async would cost a thread's turn."""
    return load.step(i)


def _serve(port: int) -> None:
    config = hypercorn.Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.h2_max_concurrent_streams = config.keep_alive_max_requests = 2**31 - 1
    config.keep_alive_timeout = 2**31 - 1
    asyncio.run(hypercorn.asyncio.serve(restate.app([service]), config))  # type: ignore[arg-type]


async def _until(session: aiohttp.ClientSession, url: str, **how: Any) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            async with session.request("POST" if how else "GET", url, **how) as answer:
                if answer.status < 300:
                    return
        except aiohttp.ClientError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(url)
        await asyncio.sleep(0.1)


async def _session() -> aiohttp.ClientSession:
    limits = aiohttp.ClientTimeout(total=900)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits)


def main() -> None:
    """Starts server and worker, measures, stops them."""
    wanted = json.loads(sys.argv[1])
    ingress, admin, node, port = wanted["ports"]
    environment = {
        **os.environ,
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
        "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}/",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_DEFAULT_NUM_PARTITIONS": str(wanted["partitions"]),
    }
    folder = Path(os.environ[load.STEPS_FILE]).parent
    command = [wanted["server"], "--base-dir", str(folder / "restate"), "--node-name", "n1", "--no-logo"]
    with (folder / "restate.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        worker = subprocess.Popen([sys.executable, "-m", __spec__.name, "serve", str(port)], stderr=log)
    try:
        loop = asyncio.new_event_loop()
        session = loop.run_until_complete(_session())
        loop.run_until_complete(_until(session, f"http://127.0.0.1:{admin}/health"))
        deployment = {"uri": f"http://127.0.0.1:{port}"}
        loop.run_until_complete(_until(session, f"http://127.0.0.1:{admin}/deployments", json=deployment))

        async def one() -> int:
            async with session.post(f"http://127.0.0.1:{ingress}/peer/run", json=load.STEPS) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"{answer.status}: {(await answer.text())[:100]}")
                return int(await answer.text())

        load.report(load.driven(one, loop), (server.pid, worker.pid))
        loop.run_until_complete(session.close())
    finally:
        worker.kill()
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(int(sys.argv[2]))
    else:
        main()
