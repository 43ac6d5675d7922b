"""What calls of a run say while they run, as it comes on `run-stream`: for who looks on, and lossy.

Reading takes nothing from anybody: it asks for no run, no call and no model.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from refold.core.errors import FoldError, MalformedError
from refold.core.ids import home, parse_call_id
from refold.core.live import StreamPart
from refold.core.topics import RUN_STREAM
from refold.core.wire import canonical, codec
from refold.ports.log import LogReader, Record


@dataclass(frozen=True, slots=True)
class LivePart:
    """A part of what a call says. `n` numbers the parts of a try from 1; a number that is missing was lost.

    `supersedes`: it is the first of a new try, and what the call has said before counts no more. `data` has `text`, or
    `tool` and `args`, by `kind`: text, thinking, tool_call.
    """

    run_id: str
    call_id: str
    attempt: int
    n: int
    kind: str
    data: Any
    supersedes: bool = False


class Tries:
    """Tells the parts of the last try of each call from those of a try before, which may go on for a while."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def read(self, part: StreamPart) -> LivePart | None:
        """A part as who looks on gets it; None: it is of a try that was superseded."""
        tried, last = (part.attempt, part.began_ms), self._last.get(part.call_id)
        if last is not None and tried < last:
            return None
        self._last[part.call_id] = tried
        data, new = canonical.parse(part.data), last is not None and tried > last
        return LivePart(part.run_id, part.call_id, part.attempt, part.n, part.kind, data, new)


def live_parts(reader: LogReader, run: str, partitions: int, timeout: timedelta | None) -> Generator[LivePart | None]:
    """The parts of a run, those of the last minutes first, and on, and None when there is nothing new for a moment.

    It ends when there was none for a `timeout`.
    """
    tries, heard = Tries(), time.monotonic()
    for record in reader.tail(RUN_STREAM, home(run, partitions)):
        found = _part(record, run) if record is not None else None
        if found is not None and (told := tries.read(found)) is not None:
            yield told
            heard = time.monotonic()
        elif timeout is not None and time.monotonic() - heard > timeout.total_seconds():
            return
        elif record is None:
            yield None


def _part(record: Record, run: str) -> StreamPart | None:
    """The part in a record; None for one of another run, or of nobody that writes parts."""
    try:
        found = codec.decode(StreamPart, record.value or b"")
        canonical.parse(found.data)
        whose = parse_call_id(found.call_id)[0]
    except (FoldError, MalformedError):  # of a newer version, too: others go on to be heard
        return None
    return found if found.run_id == whose == run else None
