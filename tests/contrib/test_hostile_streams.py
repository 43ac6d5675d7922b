"""What lies in the stream of live words may be anybody's: whoever looks on goes on looking."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refold.client.streams import _part
from refold.core.ids import CallId, RunId
from refold.core.live import StreamPart
from refold.core.wire import codec
from refold.ports.log import Record


def lying(value: bytes | None) -> Record:
    return Record("run-stream", 0, 0, b"r", value, 0, list)


def part(**changes: Any) -> bytes:
    return codec.encode(replace(StreamPart(RunId("r"), CallId("r/2"), 1, 1, 1, "text", "{}"), **changes))


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", b"\0\0\0\xff\xffnewer"),
        *(part(data="{"), part(call_id=CallId("other/2")), part(call_id=CallId("?")), part(run_id=RunId("other"))),
    ],
)
def test_what_nobody_can_read_or_is_of_another_run_is_passed_over(value: bytes | None) -> None:
    assert _part(lying(value), "r") is None
    assert _part(lying(part()), "r") is not None
