"""Refold's peer Temporal: a workflow whose steps are activities, the development server on a file of SQLite, one worker
process, and a driver."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path

from benchmarks.peers import load
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

QUEUE = "refold-peer"


@activity.defn
async def step(i: int) -> int:
    """A step that does nothing."""
    return load.step(i)


@workflow.defn
class Run:
    """Ten steps, one after the other."""

    @workflow.run
    async def run(self) -> int:
        """See `Run`."""
        limit = timedelta(seconds=60)
        return sum([await workflow.execute_activity(step, i, start_to_close_timeout=limit) for i in range(load.STEPS)])


async def _connected(address: str) -> Client:
    deadline = time.monotonic() + 60
    while True:
        try:
            return await Client.connect(address)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


async def _serve(address: str) -> None:
    client = await Client.connect(address)
    runner = UnsandboxedWorkflowRunner()
    await Worker(client, task_queue=QUEUE, workflows=[Run], activities=[step], workflow_runner=runner).run()


def main() -> None:
    """Starts server and worker, measures, stops them."""
    wanted = json.loads(sys.argv[1])
    folder = Path(os.environ[load.STEPS_FILE]).parent
    address = f"127.0.0.1:{wanted['ports'][0]}"
    command = [wanted["server"], "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--log-level", "error"]
    command += ["--port", str(wanted["ports"][0]), "--http-port", str(wanted["ports"][1])]
    command += ["--metrics-port", str(wanted["ports"][2]), "--db-filename", str(folder / "temporal.db")]
    with (folder / "temporal.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        worker = None
        try:
            loop = asyncio.new_event_loop()
            client = loop.run_until_complete(_connected(address))
            worker = subprocess.Popen([sys.executable, "-m", __spec__.name, "serve", address], stderr=log)

            async def one() -> int:
                """A workflow under an id of its own."""
                return int(await client.execute_workflow(Run.run, id=uuid.uuid4().hex, task_queue=QUEUE))

            load.report(load.driven(one, loop), (server.pid, worker.pid))
        finally:
            if worker is not None:
                worker.kill()
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(_serve(sys.argv[2]))
    else:
        main()
