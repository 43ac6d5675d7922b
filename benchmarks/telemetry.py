"""CPU of a span, folded and encoded, and of the numbers that a host keeps: `python -m benchmarks.telemetry`."""

from __future__ import annotations

import time

from benchmarks.prefill import finished
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from refold.console.telemetry.spans import RunSpans, Style
from refold.core.events import Entry
from refold.core.ids import EntryId, RunId
from refold.core.ids import parse_log_key as parse
from refold.core.wire import codec
from refold.engine.runtime.gauges import Vitals

RUNS, TURNS = 500, 200_000


def spans() -> tuple[float, float, int]:
    """CPU of a span: to decode and fold its entries, and to encode it. **Units**: microseconds; bytes."""
    runs = {RunId(f"r-{n}"): list(finished(RunId(f"r-{n}"), 1_790_000_000_000)) for n in range(RUNS)}
    found, begun = [], time.process_time()
    for run, pairs in runs.items():
        fold = RunSpans(run, Style(gen_ai=True), lambda above: None)
        for key, value in pairs:
            if (parts := parse(key)) is not None:
                found += fold.feed(EntryId(parts[2]), codec.decode(Entry, value))
    folded = time.process_time()
    size = sum(encode_spans(found[at : at + 500]).ByteSize() for at in range(0, len(found), 500))
    encoded = time.process_time()
    count = len(found)
    return (folded - begun) / count * 1e6, (encoded - folded) / count * 1e6, size // count


def turn() -> float:
    """CPU of what a turn with an append costs a host for its numbers. **Units**: microseconds."""
    vitals, begun = Vitals(), time.process_time()
    for _ in range(TURNS):
        vitals.begin_turn(time.monotonic())
        vitals.end_turn(time.monotonic())
        vitals.read(7)
        vitals.wrote(3, time.monotonic())
    return (time.process_time() - begun) / TURNS * 1e6


if __name__ == "__main__":
    fold_us, encode_us, size = min(spans() for _ in range(5))
    print(f"a span    {fold_us:.0f} us to decode and fold, {encode_us:.0f} us to encode, {size} bytes")
    print(f"a turn    {min(turn() for _ in range(5)):.2f} us for its numbers")
