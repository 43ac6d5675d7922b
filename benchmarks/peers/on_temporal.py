"""Refold's peer Temporal: a workflow whose steps are activities, on a server that runs already, one worker process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from datetime import timedelta

from benchmarks.peers.load import driven, report, stamp
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

QUEUE = "refold-peer"


@activity.defn
async def step(i: int) -> int:
    """A step that does nothing."""
    return stamp(i)


@workflow.defn
class Run:
    """So many steps, one after the other."""

    @workflow.run
    async def run(self, steps: int) -> int:
        """See `Run`."""
        limit = timedelta(seconds=60)
        return sum([await workflow.execute_activity(step, i, start_to_close_timeout=limit) for i in range(steps)])


async def _serve(address: str) -> None:
    client = await Client.connect(address)
    runner = UnsandboxedWorkflowRunner()
    await Worker(client, task_queue=QUEUE, workflows=[Run], activities=[step], workflow_runner=runner).run()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(_serve(sys.argv[2]))
    else:
        where = json.loads(sys.argv[1])["temporal"]
        worker = subprocess.Popen([sys.executable, "-m", __spec__.name, "serve", where])
        try:
            loop = asyncio.new_event_loop()
            client = loop.run_until_complete(Client.connect(where))

            async def one(steps: int) -> None:
                """A workflow under an id of its own."""
                await client.execute_workflow(Run.run, steps, id=uuid.uuid4().hex, task_queue=QUEUE)

            report(driven(one, loop))
        finally:
            worker.kill()
