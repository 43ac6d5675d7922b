"""How fast one process folds a run log: raw (key, value) pairs in, states out. Prints JSON.

The typical entry settles a call and asks for the next one (`CallCompleted`, `CallProposed`, `CallDispatched`, 120
bytes of result), so this is what a take-over, a projection or `refold verify` has to do per step, without the
broker. Medians of five rounds, in CPU time. The collector of cyclic garbage walks over every state that is kept and
finds nothing, so the figure is given with it and without.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable

from benchmarks.peers.load import STEPS

from refold.core.events import (
    CallCompleted,
    CallDispatched,
    CallProposed,
    Cause,
    Entry,
    Event,
    RetryPolicy,
    RunRequested,
    RunStarted,
)
from refold.core.ids import NO_ENTRY, call_id, log_key
from refold.core.messages import ToolResult
from refold.core.run import chain, state
from refold.core.run import fold as folding
from refold.core.wire import codec
from refold.core.wire.canonical import idempotency_key
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.runtime.memory import COLLECT_AFTER
from refold.engine.runtime.settings import KafkaSettings

RESULT = json.dumps({"image": "registry/service@sha256:" + "0" * 64, "size": 184320, "ok": 1}, separators=(",", ":"))
ARGS = '{"service":"checkout","version":"4.2.1"}'
ROUNDS = 5

Pair = tuple[bytes, bytes]


def propose(run: str, step: int) -> list[Event]:
    key = idempotency_key(environment="bench", run=run, step=step, tool="push_image", args=ARGS)
    retry = RetryPolicy(attempts=5)
    call = CallProposed(step, "push_image", ARGS, key, "default", "keyed", 30_000, retry, 86_400_000)
    return [call, CallDispatched(step, 1, 1_700_000_040_000)]


def history(run: str) -> list[Pair]:
    """A run of ten steps as its records."""
    pairs: list[Pair] = []
    seq, prev = 1, NO_ENTRY
    for step in range(1, STEPS + 1):
        events: list[Event] = (
            [CallCompleted(step - 1, 1, RESULT)]
            if step > 1
            else [RunRequested("deploy", "{}", "0" * 32, ""), RunStarted()]
        )
        events += propose(run, step)
        cause = Cause("tool-completed.default", 3, 1000 + step)
        entry = Entry(run, seq, prev, 1_700_000_000_000 + step, cause, "planner-1", bytes(16), events)
        prev, value = codec.encode_entry(entry)
        pairs.append((log_key(run, seq, prev), value))
        seq += len(events)
    return pairs


def fold(pairs: Iterable[Pair]) -> int:
    """What every reader of the run log does; returns the number of events that counted."""
    states: dict[str, state.RunState] = {}
    events = 0
    for key, value in pairs:
        judged = chain.read(key, value)
        if judged == "anchor":
            continue
        assert isinstance(judged, chain.LogRecord)
        entry = judged.entry
        known = states.get(entry.run_id)
        if known is None:
            known = states[entry.run_id] = state.RunState(entry.run_id)
        if chain.extends(known.head, entry):
            folding.apply(known, entry, judged.id)
            events += len(entry.events)
    return events


def seconds(work: Callable[[], object]) -> float:
    """The median time of the work, in CPU seconds of this process: others may be using the machine."""
    taken = []
    for _ in range(ROUNDS):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return statistics.median(taken)


def rate_from_broker(settings: KafkaSettings) -> dict[str, float]:
    """Read a run log from the broker and fold it in this process, with the collector of a service: median of three."""
    reader, events, before = KafkaLogReader(settings), 0, gc.get_threshold()
    rates: list[float] = []
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    for _ in range(3):
        started = time.perf_counter()
        events = fold((record.key or b"", record.value or b"") for record in reader.scan("run-log"))
        rates.append(events / (time.perf_counter() - started))
    gc.set_threshold(*before)
    return {"events": events, "events_per_s": round(statistics.median(rates))}


def without_collector(work: Callable[[], object]) -> None:
    """Does the work as a take-over may do it: what it builds is all kept."""
    gc.disable()
    try:
        work()
    finally:
        gc.enable()


def main(runs: int) -> dict[str, float]:
    pairs = [pair for n in range(runs) for pair in history(f"run-{n:06}")]
    events = fold(pairs)
    entry = chain.read(*pairs[STEPS - 1])
    assert isinstance(entry, chain.LogRecord)
    typical = entry.entry
    result = codec.encode(
        ToolResult(call_id("run-000001", 27), "run-000001", 9, 1, "completed", RESULT, executor="e-1")
    )
    repeat = range(5_000)
    return {
        "events": events,
        "bytes_per_entry": statistics.mean(len(value) for _, value in pairs),
        "fold_events_per_s": events / seconds(lambda: fold(pairs)),
        "fold_events_per_s_collector_off": events / seconds(lambda: without_collector(lambda: fold(pairs))),
        "read_us": seconds(lambda: [chain.read(*pairs[5]) for _ in repeat]) / len(repeat) * 1e6,
        "decode_entry_us": seconds(lambda: [codec.decode(Entry, pairs[5][1]) for _ in repeat]) / len(repeat) * 1e6,
        "encode_entry_us": seconds(lambda: [codec.encode_entry(typical) for _ in repeat]) / len(repeat) * 1e6,
        "decode_tool_result_us": seconds(lambda: [codec.decode(ToolResult, result) for _ in repeat])
        / len(repeat)
        * 1e6,
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000), indent=2))
