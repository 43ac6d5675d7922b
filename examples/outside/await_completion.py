"""Waits until a run is over, by consuming run-completed.

python await_completion.py --kafka 127.0.0.1:9092 r-1
"""

from __future__ import annotations

import argparse
import json
import signal

from records import Schemas, from_the_start


def main() -> None:
    """Prints the run's record in run-completed as JSON; exit code 0 when the run completed, 1 when it did not."""
    parser = argparse.ArgumentParser(description="Wait for a run-completed record.")
    parser.add_argument("--kafka", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="refold.run-completed")
    parser.add_argument("--timeout", type=int, default=60, help="seconds")
    parser.add_argument("run")
    options = parser.parse_args()
    signal.alarm(options.timeout)  # ends this process, whatever it waits for
    schemas = Schemas()
    for message in from_the_start(options.kafka, options.topic, follow=True):
        value = message.value()
        if message.key() == options.run.encode() and value is not None:
            outcome = schemas.read(value)
            print(json.dumps({**outcome, "result": json.loads(outcome["result"])}))
            raise SystemExit(0 if outcome["status"] == "completed" else 1)


if __name__ == "__main__":
    main()
