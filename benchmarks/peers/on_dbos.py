"""Refold's peer DBOS, as its documentation recommends: a workflow whose steps are `DBOS.step`, on Postgres."""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.peers.load import driven, report, stamp
from dbos import DBOS, DBOSConfig


@DBOS.step()
async def step(i: int) -> int:
    """A step that does nothing."""
    return stamp(i)


@DBOS.workflow()
async def run(steps: int) -> int:
    """So many steps, one after the other."""
    return sum([await step(i) for i in range(steps)])


if __name__ == "__main__":
    url = json.loads(sys.argv[1])["postgres"].replace("postgresql://", "postgresql+psycopg://")
    DBOS(config=DBOSConfig(name="peer", system_database_url=url, log_level="ERROR", console_log_level="ERROR"))
    DBOS.launch()
    loop = asyncio.new_event_loop()
    report(driven(run, loop))
    DBOS.destroy()
