"""A projection of the run log: status and steps of every run, folded with fastavro and the exported schema alone.

python fold_log.py --kafka 127.0.0.1:9092 [RUN]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from confluent_kafka import Message
from records import FRAME, Schemas, from_the_start

Head = tuple[bytes, int]
"""Where the history of a run ends: the id of its last entry, and the number of its last event."""


def extends(schemas: Schemas, key: bytes | None, value: bytes | None, head_of: Callable[[str], Head]) -> Any | None:
    """Returns the run, its new head and the entry of a record that is what its key says and extends the head.

    This is the whole rule. What lost a race, or was sent a second time by a process that thought it was alive,
    does not extend the head.
    """
    if key is None or value is None:
        return None
    run, _, rest = key.decode().partition("/")
    seq, _, name = rest.partition("/")
    entry_id = blake2b(value[FRAME.size :], digest_size=16)
    head, last = head_of(run)
    if entry_id.hexdigest() != name:
        return None
    entry = schemas.read(value)
    if entry["prev"] != head or not entry["seq"] == int(seq) == last + 1:
        return None
    return run, (entry_id.digest(), last + len(entry["events"])), entry


class Projection:
    """What all runs are, as far as the log was fed."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._heads: dict[str, Head] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.void = 0

    def feed(self, message: Message) -> None:
        """Takes a record in, if it counts."""
        found = extends(self._schemas, message.key(), message.value(), lambda run: self._heads.get(run, (b"", 0)))
        if found is None:
            self.void += message.value() is not None
            return
        run, self._heads[run], entry = found
        for kind, event in entry["events"]:
            self._apply(run, kind.removeprefix("refold."), event)

    def _apply(self, run: str, kind: str, event: dict[str, Any]) -> None:
        view = self.runs.setdefault(run, {"agent": "", "status": "pending", "calls": {}})
        if kind == "RunRequested":
            view["agent"] = event["agent"]
        elif kind == "RunStarted":
            view["status"] = "running"
        elif kind == "CallProposed":
            view["calls"][event["step"]] = {"tool": event["tool"], "status": "open", "attempts": 0}
        elif kind == "CallDispatched":
            view["calls"][event["step"]]["attempts"] = event["attempt"]
        elif kind == "CallDoubted":
            view["calls"][event["step"]]["status"] = "in doubt"
        elif kind == "CallCompleted":
            view["calls"][event["step"]] |= {"status": "completed", "result": json.loads(event["result"])}
        elif kind == "CallFailed":
            view["calls"][event["step"]] |= {"status": "failed", "failure": event["failure"]["message"]}
        elif kind in ("RunCompleted", "RunFailed", "RunCancelled"):
            view["status"] = kind.removeprefix("Run").lower()


def main() -> None:
    """Folds the log to its end and prints the projection as JSON."""
    parser = argparse.ArgumentParser(description="Fold the run log into a projection.")
    parser.add_argument("--kafka", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="refold.run-log")
    parser.add_argument("run", nargs="?", help="print this run only")
    options = parser.parse_args()
    projection = Projection(Schemas())
    for message in from_the_start(options.kafka, options.topic, follow=False):
        projection.feed(message)
    if options.run and options.run not in projection.runs:
        raise SystemExit(f"there is no run {options.run} in {options.topic}")
    runs = {options.run: projection.runs[options.run]} if options.run else projection.runs
    print(json.dumps({"void": projection.void, "runs": runs}))


if __name__ == "__main__":
    main()
