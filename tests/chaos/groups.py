"""What Kafka keeps of a consumer group: how far its members have read. A campaign takes it away.

    python -m tests.chaos.groups BOOTSTRAP GROUP count TOPIC    # in how many partitions it has committed something
    python -m tests.chaos.groups BOOTSTRAP GROUP delete         # deletes the group, as soon as nobody is in it

Done in processes of their own: a client that has asked for a coordinator may never let go of the thread that ends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

ROOT = Path(__file__).parents[2]
GROUPS = {
    "planner": ("refold-planner", "run-requested"),
    "executor": ("refold-executor-default", "tool-requested.default"),
}
"""The groups that commit, and a topic of theirs, without the prefix. Approval services read from the beginning."""

_ANSWER_S = 5.0
_PAUSE_S = 0.2


def committed(bootstrap: str, group: str, topic: str) -> int | None:
    """In how many partitions of a topic a group has committed something; None when nobody answers."""
    found = _ask(bootstrap, group, "count", topic, within=2 * _ANSWER_S)
    return int(found) if found else None


def forget(bootstrap: str, group: str, *, within: float) -> bool:
    """Deletes a group with all that it has committed; false if that has not worked in these seconds."""
    return _ask(bootstrap, group, "delete", within=within) is not None


def _ask(*what: str, within: float) -> str | None:
    """What is printed; None if it went wrong, or took too long."""
    command = (sys.executable, "-m", "tests.chaos.groups", *what)
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, timeout=within, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else None
    return None


def _count(bootstrap: str, group: str, topic: str) -> None:
    asker = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    numbers = asker.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions
    asked = [TopicPartition(topic, number) for number in numbers]
    _end(str(sum(each.offset >= 0 for each in asker.committed(asked, timeout=_ANSWER_S))))


def _delete(bootstrap: str, group: str) -> None:
    kept: list[AdminClient] = []
    while True:
        kept.append(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}))
        (deleted,) = kept[-1].delete_consumer_groups([group]).values()
        with suppress(TimeoutError):
            error = deleted.exception(_ANSWER_S)
            if error is None or error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                _end()
        threading.Event().wait(_PAUSE_S)


def _end(text: str = "") -> None:
    """Says it, and is gone before any client is let go of."""
    print(text, flush=True)  # noqa: T201
    os._exit(0)


if __name__ == "__main__":
    {"count": _count, "delete": _delete}[sys.argv[3]](*sys.argv[1:3], *sys.argv[4:])  # type: ignore[operator]
