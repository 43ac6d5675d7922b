"""Calls per minute and tool by Faust: `KAFKA=127.0.0.1:9092 python faust_rates.py worker --loglevel warn`."""

import os
import sqlite3
from typing import Any

import faust
from fold_log import Head, extends
from records import Schemas, from_the_start

KAFKA, TOPIC = os.environ.get("KAFKA", "127.0.0.1:9092"), os.environ.get("TOPIC", "refold.run-log")
rates, schemas = sqlite3.connect(os.environ.get("RATES", "rates.db")), Schemas()
rates.execute("create table if not exists heads (run primary key, entry, seq)")
rates.execute("create table if not exists rates (minute, tool, calls, primary key (minute, tool))")
options = {"store": "memory://", "web_enabled": False, "topic_disable_leader": True, "value_serializer": "raw"}
app = faust.App(f"{TOPIC}-rates", broker=f"kafka://{KAFKA}", consumer_group_instance_id="rates", **options)


def head_of(run: str) -> Head:
    return rates.execute("select entry, seq from heads where run = ?", [run]).fetchone() or (b"", 0)


def take(key: bytes, value: bytes | None) -> None:
    if (found := extends(schemas, key, value, head_of)) is not None:
        run, head, entry = found
        rates.execute("replace into heads values (?, ?, ?)", [run, *head])
        for at in [(entry["at_ms"] // 60_000, event["tool"]) for kind, event in entry["events"] if "Proposed" in kind]:
            rates.execute("insert into rates values (?, ?, 1) on conflict do update set calls = calls + 1", at)


def catch_up() -> None:
    with rates:
        for each in from_the_start(KAFKA, TOPIC, follow=False):  # those that are counted extend no head any more
            take(each.key(), each.value())


@app.agent(app.topic(TOPIC, key_type=bytes, value_type=bytes, value_serializer="raw"))
async def count(stream: Any) -> None:
    async for events in stream.take_events(1_000, within=0.1):
        for key, value in ((event.message.key, event.message.value) for event in events):
            run, seq, _ = key.decode().split("/")
            if int(seq) > head_of(run)[1] + 1:  # something was missed
                print(f"gap in {run}", flush=True)
                catch_up()
            take(key, value)
        rates.commit()  # heads and counts in one transaction: nothing rests on where Kafka has the consumer


if __name__ == "__main__":
    catch_up()
    app.main()
