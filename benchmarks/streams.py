"""What streams of the gateway cost, on a `refold dev` that is started for it: `python -m benchmarks.streams`.

`--clients N` listeners (default 200) follow `--runs N` runs (default 20, at most 60: the gateway takes as many writes a
minute) of `--calls N` calls each, with three events a call. A tenth of them is cut off after a few events, again and
again, and goes on behind the last id. Prints JSON: events that were lost or came out of order, CPU of the gateway's
process for each delivery (connecting and looking for news included), memory for each stream, and the time from an
entry's `at_ms` to its receipt. Everything runs on this machine, so times are bounds.

`--alone N`: instead, N runs of three steps, one after another. Each is requested with `?wait=0`, and followed with its
live parts right after the answer. Prints the time from the request to the first event, the first part and the end of
the stream, and the answers 404. Then, with one stream of all runs: CPU of gateway, projector and broker, without runs
and with `--rate` runs a second, each for `--seconds`. `--store` names the database of the views.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from tests.cli.terminal import Dev, served
from tests.contract.table_benches import postgres_server
from tests.tidy.repository import ROOT
from tests.waiting import eventually

from refold.client.operations.operation import publish_input
from refold.client.platform import Platform
from refold.core.ids import RunId
from refold.core.messages import RunRequest
from refold.engine.runtime.addresses import addresses

QUIET_S = 3.0
"""Between the last connection and the beginning of the runs: memory is measured there."""
CONNECT_S = 0.01
"""For each client, so that all of them listen before the runs begin."""
CUTS = 5
_EVENT = re.compile(rb'id: (\d+)\nevent: \w+\ndata: \{"seq":\d+,"type":"\w+","at_ms":(\d+)')


@dataclass
class Listener:
    """A client of one stream. `cut_after`: events behind which it leaves and comes back; 0: it stays."""

    run: str
    cut_after: int = 0
    seen: list[int] = field(default_factory=list)
    delays_ms: list[float] = field(default_factory=list)
    cuts: int = 0

    async def follow(self, host: str, port: int, connected: asyncio.Semaphore) -> None:
        """Read to the end of the run, over as many connections as it takes."""
        while not await self._connection(host, port, connected):  # noqa: ASYNC110 - the server is asked again
            await asyncio.sleep(0.05)

    async def _connection(self, host: str, port: int, connected: asyncio.Semaphore) -> bool:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            last = f"Last-Event-ID: {self.seen[-1]}\r\n" if self.seen else ""
            writer.write(f"GET /api/runs/{self.run}/stream HTTP/1.1\r\nHost: {host}:{port}\r\n{last}\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 204 " in head.partition(b"\r\n")[0]:
                return True
            if b" 200 " not in head.partition(b"\r\n")[0]:
                return False
            connected.release()
            leave = len(self.seen) + self.cut_after if self.cut_after and self.cuts < CUTS else 0
            return await self._read(reader, leave)
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, leave: int) -> bool:
        while size := int(await reader.readline() or b"0", 16):
            now_ms = time.time() * 1_000
            chunk = (await reader.readexactly(size + 2))[:-2]
            for seq, at_ms in _EVENT.findall(chunk):
                self.seen.append(int(seq))
                self.delays_ms.append(now_ms - int(at_ms))
                if leave and len(self.seen) >= leave:
                    self.cuts += 1
                    return False
        return True


def cpu_s(pid: int) -> float:
    """CPU time of a process."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def memory_kib(pid: int) -> int:
    """Resident memory of a process."""
    return int(next(line.split()[1] for line in Path(f"/proc/{pid}/status").open() if line.startswith("VmRSS")))


async def measured(dev: Dev, clients: int, runs: int, calls: int) -> dict[str, Any]:
    """Follow runs on a platform and return the figures."""
    url = urlsplit(dev.state["gateway"])
    host, port = url.hostname or "", url.port or 0
    pid = dev.pid("gateway")
    names = [f"streamed-{number}" for number in range(runs)]
    begin_ms = int((time.time() + 5 + runs * 0.1 + clients * CONNECT_S * 2 + QUIET_S) * 1_000)
    async with httpx.AsyncClient(base_url=dev.state["gateway"], timeout=60) as http:
        for name in names:
            body = {"agent": "marks", "input": {"count": calls}, "id": name, "not_before_ms": begin_ms}
            (await http.post("/api/runs", json=body, params={"wait": 30})).raise_for_status()
        before_kib, before_s = memory_kib(pid), cpu_s(pid)
        rng = random.Random(1)
        listeners = [
            Listener(names[number % runs], rng.randint(5, 3 * calls // CUTS) if number % 10 == 0 else 0)
            for number in range(clients)
        ]
        connected = asyncio.Semaphore(0)
        tasks = []
        for listener in listeners:
            tasks.append(asyncio.create_task(listener.follow(host, port, connected)))
            await asyncio.sleep(CONNECT_S)
        for _ in listeners:
            await connected.acquire()
        await asyncio.sleep(QUIET_S)
        idle_kib, late = memory_kib(pid), time.time() * 1_000 > begin_ms
        most_kib = idle_kib
        while not all(task.done() for task in tasks):
            most_kib = max(most_kib, memory_kib(pid))
            await asyncio.sleep(0.5)
        await asyncio.gather(*tasks)
        taken_s = cpu_s(pid) - before_s
        ends = {name: (await http.get(f"/api/runs/{name}")).json()["seq"] for name in names}
    return figures(listeners, ends) | {
        "runs_began_early": late,
        "gateway_cpu_s": round(taken_s, 2),
        "cpu_us_a_delivery": round(taken_s / sum(len(each.seen) for each in listeners) * 1e6),
        "kib_a_stream_idle": round((idle_kib - before_kib) / clients, 1),
        "kib_a_stream_most": round((most_kib - before_kib) / clients, 1),
    }


def figures(listeners: list[Listener], ends: dict[str, int]) -> dict[str, Any]:
    """What the listeners have seen, and how late."""
    delays = sorted(delay for each in listeners for delay in each.delays_ms if len(each.seen) > 1)
    return {
        "clients": len(listeners),
        "runs": len(ends),
        "deliveries": len(delays),
        "cuts": sum(each.cuts for each in listeners),
        "lost": sum(len(set(range(1, ends[each.run] + 1)) - set(each.seen)) for each in listeners),
        "out_of_order": sum(each.seen != sorted(set(each.seen)) for each in listeners),
        "p50_ms": round(delays[len(delays) // 2]),
        "p99_ms": round(delays[len(delays) * 99 // 100]),
    }


def quantiles(times_s: list[float]) -> dict[str, float]:
    """Percentiles; on a busy machine the 10th is what the path takes. **Units**: milliseconds."""
    ordered = sorted(times_s)
    return (
        {f"p{part}": round(1_000 * ordered[len(ordered) * part // 100], 1) for part in (10, 50, 90)} if ordered else {}
    )


async def alone(dev: Dev, runs: int, prefix: str) -> dict[str, Any]:
    """Follow runs, each from right after its request, and return the times since then."""
    times: dict[str, list[float]] = {"first_event": [], "first_part": [], "end": []}
    missing = 0
    async with httpx.AsyncClient(base_url=dev.state["gateway"], timeout=60) as http:
        for number in range(runs):
            begun, name, seen = time.monotonic(), f"{prefix}-{number}", set[str]()
            body = {"agent": "speaker", "input": {"count": 3}, "id": name}
            (await http.post("/api/runs", json=body, params={"wait": 0})).raise_for_status()
            while "end" not in seen:
                async with http.stream("GET", f"/api/runs/{name}/stream", params={"parts": "true"}) as stream:
                    missing += stream.status_code == 404
                    async for line in stream.aiter_lines():
                        at = {"id": "first_event", "event: part": "first_part"}
                        of = at.get(line if line.startswith("event") else line.partition(":")[0], "")
                        if of and of not in seen:
                            seen.add(of)
                            times[of].append(time.monotonic() - begun)
                    if "first_event" in seen:
                        seen.add("end")
                        times["end"].append(time.monotonic() - begun)
                if "end" not in seen:
                    await asyncio.sleep(0.005)
            await asyncio.sleep(0.3)
    return {"runs": runs, "answers_404": missing, "ms": {name: quantiles(of) for name, of in times.items()}}


async def loaded(dev: Dev, rate: int, seconds: int) -> dict[str, Any]:
    """CPU of services beside one stream of all runs. **Units**: milliseconds a second."""
    services = [name for name in ("gateway", "projections", "broker") if dev.state["processes"].get(name)]
    publisher = Platform(addresses(data=str(dev.data)), source="benchmark").publisher
    loop, threads, received = asyncio.get_running_loop(), ThreadPoolExecutor(8), 0
    url = urlsplit(dev.state["gateway"])

    async def follow() -> None:
        nonlocal received
        reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=1 << 24)
        writer.write(f"GET /api/stream HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode())
        while chunk := await reader.read(1 << 20):
            received += chunk.count(b"\nevent: RunCompleted")

    async def cpu(per_second: int) -> dict[str, float]:
        before, begun = {name: cpu_s(dev.pid(name)) for name in services}, time.monotonic()
        for number in range(max(1, per_second) * seconds):
            await asyncio.sleep(begun + number / max(1, per_second) - time.monotonic())
            if per_second:
                request = RunRequest(RunId(f"load-{number}"), "speaker", '{"count":3}', "ann")
                loop.run_in_executor(threads, publish_input, publisher, request)
        await asyncio.sleep(begun + seconds - time.monotonic())
        return {name: round((cpu_s(dev.pid(name)) - before[name]) / seconds * 1_000, 1) for name in services}

    follower = asyncio.create_task(follow())
    await asyncio.sleep(QUIET_S)
    idle = await cpu(0)
    busy = await cpu(rate)
    await asyncio.sleep(QUIET_S)
    follower.cancel()
    return {"idle": idle, f"{rate}_runs_a_second": busy, "runs_followed": received, "runs_sent": rate * seconds}


@contextmanager
def platform(folder: Path, store: str = "sqlite") -> Iterator[Dev]:
    """A running platform with an agent that makes calls."""
    (folder / "effects").touch()
    many = {"EFFECTS": str(folder), "REFOLD_GATEWAY__WRITES": '{"person": 60000}'}
    with postgres_server() if store == "postgres" else nullcontext() as server:
        views = {"REFOLD_VIEWS__URL": server.get_uri()} if server else {}
        with served(ROOT / "tests" / "cli" / "app.py", folder, **many, **views) as dev:
            eventually(lambda: ready(dev.state["gateway"]))
            yield dev


def ready(url: str) -> bool:
    """True once the gateway can answer."""
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def main(given: argparse.Namespace) -> dict[str, Any]:
    """Start a platform, measure, and end it."""
    with tempfile.TemporaryDirectory() as folder, platform(Path(folder), given.store) as dev:
        if not given.alone:
            return asyncio.run(measured(dev, given.clients, given.runs, given.calls))
        asyncio.run(alone(dev, 5, "warm"))  # compiles and connects
        found = asyncio.run(alone(dev, given.alone, "alone"))
        return (
            found
            if not given.seconds
            else found | {"cpu_ms_a_second": asyncio.run(loaded(dev, given.rate, given.seconds))}
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--alone", type=int, default=0)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    print(json.dumps(main(parser.parse_args()), indent=2))
