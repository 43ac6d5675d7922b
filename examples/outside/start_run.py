"""Starts a run by producing plain JSON: no Refold, no schema, just a record with a key.

python start_run.py --kafka 127.0.0.1:9092 --id r-1 --agent deploy --input '{"service": "shop", "version": "1.2"}'
"""

from __future__ import annotations

import argparse
import json

from confluent_kafka import KafkaError, Message, Producer


def main() -> None:
    """Produces one run-requested record and prints where it lies."""
    parser = argparse.ArgumentParser(description="Start a run with a plain JSON record.")
    parser.add_argument("--kafka", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="refold.run-requested")
    parser.add_argument("--id", required=True, help="the run's id; the same id again with equal input is harmless")
    parser.add_argument("--agent", required=True)
    parser.add_argument("--input", default="null", help="JSON")
    options = parser.parse_args()
    request = {"run_id": options.id, "agent": options.agent, "input": json.loads(options.input)}

    # librdkafka hashes keys with CRC32 unless told otherwise; Java clients, and Refold, use murmur2. With another
    # partitioner the run starts as well: its request is forwarded home.
    producer = Producer({"bootstrap.servers": options.kafka, "partitioner": "murmur2_random", "acks": "all"})
    answers: list[tuple[KafkaError | None, Message]] = []
    producer.produce(
        options.topic,
        key=options.id,
        value=json.dumps(request),
        on_delivery=lambda error, message: answers.append((error, message)),
    )
    if producer.flush(10) or not answers or answers[0][0]:
        raise SystemExit(f"the request was not acknowledged: {answers[0][0] if answers else 'no answer in 10 s'}")
    message = answers[0][1]
    place = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
    print(json.dumps({"run_id": options.id, "request": place}))


if __name__ == "__main__":
    main()
