"""Socket of a broker in memory, for readers and writers of its user in any process."""

import marshal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from typing import Any

from refold.core.errors import RefoldError, UsageError
from refold.engine.adapters.memory.lasting import LastingBroker, Row
from refold.engine.ports.log import Outgoing, Place

_MOST_ROWS, _MOST_BYTES = 1_000, 8 << 20
"""Limits of an answer: records, and bytes of values after which it ends."""


class _Server(ThreadingUnixStreamServer):
    daemon_threads, request_queue_size = True, 64

    def __init__(self, path: Path, calls: Sequence[Callable[..., Any]]) -> None:
        self.calls = {call.__name__: call for call in calls}
        super().__init__(str(path), _Connection)


class _Connection(StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        with suppress(EOFError, OSError, ValueError):
            while True:
                name, arguments = marshal.load(self.rfile)
                try:
                    answer = "", self.server.calls[name](*arguments)
                except RefoldError as error:
                    answer = error.message, None
                self.wfile.write(marshal.dumps(answer))


class BrokerSocket:
    """Serves requests, the name of a method with its arguments, in a thread per connection. The right to use it is that
    to the folder of `path`."""

    def __init__(self, broker: LastingBroker, path: Path) -> None:
        self._broker = broker
        path.unlink(missing_ok=True)
        try:
            server = _Server(path, (self.topics, self.offsets, self.read, self.write, self.group, self.identity))
        except OSError as error:  # a path of more than 100 characters, for one
            raise UsageError(f"cannot listen at {path}: {error}", hint="name a shorter folder by --data") from None
        threading.Thread(target=server.serve_forever, name="broker-socket", daemon=True).start()

    def identity(self) -> str:
        return self._broker.identity

    def topics(self) -> dict[str, int]:
        """Partition counts by topic."""
        return dict.fromkeys(self._broker.topics, self._broker.partitions)

    def offsets(self, probes: Iterable[tuple[str, int, int]]) -> list[int]:
        """Start (-2) or end (-1) of each place, or the offset of its first record since a time in ms."""
        offsets = []
        with self._broker.changed:
            for topic, partition, since in probes:
                log = self._broker.log(topic, partition)
                later = (record.offset for record in log.records if record.at_ms >= since >= 0)
                offsets.append({-1: log.end, -2: log.start}[since] if since < 0 else next(later, -1))
        return offsets

    def read(self, places: Sequence[tuple[str, int, int]], wait_s: float) -> tuple[list[Row], list[tuple[int, int]]]:
        """Records from positions on, and the next position and the end of each place; waits for the first record."""
        deadline, changed = time.monotonic() + wait_s, self._broker.changed
        with changed:
            while True:
                rows, positions = self._read(places)
                left = deadline - time.monotonic()
                if rows or left <= 0 or any(at != place[2] for place, (at, _) in zip(places, positions, strict=True)):
                    return rows, positions
                changed.wait(left)

    def _read(self, places: Sequence[tuple[str, int, int]]) -> tuple[list[Row], list[tuple[int, int]]]:
        rows, positions, size = list[Row](), list[tuple[int, int]](), 0
        for topic, partition, offset in places:
            log = self._broker.log(topic, partition)
            upto = min(log.end, offset + _MOST_ROWS)
            position = max(offset, upto)
            for record in log.read(offset, upto):
                if len(rows) == _MOST_ROWS or size >= _MOST_BYTES:
                    position = record.offset
                    break
                rows.append((*record[:5], record.read_headers(), record.at_ms))
                size += len(record.value or b"")
            positions.append((position, log.end))
        return rows, positions

    def write(self, rows: Iterable[Sequence[Any]]) -> list[tuple[int | None, int]]:
        """Append records; return the offset and time of each."""
        deliveries = self._broker.write_all([Outgoing._make((*row, token, False)) for token, row in enumerate(rows)])
        return [(offset, at_ms) for _, offset, at_ms in sorted(deliveries)]

    def group(self, name: str) -> tuple[dict[str, list[int]], list[tuple[Place, int]]]:
        """Partition numbers by member, and committed offsets."""
        with self._broker.changed:
            if (group := self._broker.groups.get(name)) is None:
                return {}, []
            return {member: self._broker.owned(name, member) for member in group.sessions}, [*group.committed.items()]
