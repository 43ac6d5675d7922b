"""CloudEvents headers (binary mode) and trace context of a record."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote

_TRACEPARENT = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
_FIXED = (("ce_specversion", b"1.0"), ("content-type", b"application/vnd.apache.avro+binary"))

CALL_KEY = "refold-key"
"""Header of a call's tombstone: its idempotency key."""

TAKEN_BACK = "refold-taken-back"
"""Header of a tombstone: the last attempt that it revokes; the call goes on."""

BASE = "refold-base"
"""Header of a call's result: the earlier calls that its executor holds. No field: older planners read the result."""

SLOTS_USED = "refold-slots-used"
"""Header of an executor's report: its calls under way. Not a field, because older readers know no later schema."""

MAX_HEADER_BYTES = 65_536
"""Limit of all headers of an input: they are copied into every record that the input causes."""


def cloud_event(
    kind: str,
    subject: str,
    *,
    id: str,  # noqa: A002 - the CloudEvents name
    source: str,
    at_ms: int,
    trace: str = "",
) -> list[tuple[str, bytes]]:
    """Headers of a record from Refold. `kind` is the topic's name, `subject` the run or call, `source` the writer's
    name, quoted as a URI reference. Without a time from the log (`at_ms` 0) the time is left out. **Source**:
    CloudEvents 1.0, context attributes and type system."""
    headers = [*_fixed(kind, source), ("ce_id", _string(id)), ("ce_subject", _string(subject))]
    if at_ms:
        headers.append(_time(at_ms))
    if trace:
        headers.append(("traceparent", trace.encode()))
    return headers


@lru_cache(maxsize=256)
def _fixed(kind: str, source: str) -> tuple[tuple[str, bytes], ...]:
    # A colon would turn the text before it into a scheme, and a strict SDK refuses an unknown one.
    uri = quote(source, safe="/@!$&'()*+,;=")
    return (*_FIXED, ("ce_type", f"refold.{kind}".encode()), ("ce_source", uri.encode()))


def _string(text: str) -> bytes:
    """String as CloudEvents allows it: unprintable characters are percent-encoded."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else quote(char, errors="replace") for char in text)
    return text.encode()


@lru_cache(maxsize=16)
def _time(at_ms: int) -> tuple[str, bytes]:
    # Cached: most records of a turn have the same time.
    return "ce_time", datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").encode()


def traceparent(headers: Sequence[tuple[str, bytes | None]] | None) -> str:
    """W3C trace context among headers; empty if absent or malformed."""
    for name, value in headers or ():
        if name == "traceparent" and value and _TRACEPARENT.match(value):
            return value.decode()
    return ""


def taken_back(headers: Sequence[tuple[str, bytes | None]] | None) -> int:
    """Last attempt that a tombstone revokes; 0: it closes the whole call."""
    return number_in(headers, TAKEN_BACK) or 0


def number_in(headers: Sequence[tuple[str, bytes | None]] | None, wanted: str) -> int | None:
    """Number in the header of this name, such as `SLOTS_USED`; None without a number of less than ten digits."""
    for name, value in headers or ():
        if name == wanted and value and value.isdigit() and len(value) < 10:
            return int(value)
    return None


def text_in(headers: Sequence[tuple[str, bytes | None]] | None, wanted: str) -> str:
    """Text in the header of this name, `CALL_KEY` or `BASE`; empty if absent."""
    for name, value in headers or ():
        if name == wanted and value:
            return value.decode(errors="replace")
    return ""


def size(headers: Sequence[tuple[str, bytes | None]] | None) -> int:
    return sum(len(name) + len(value or b"") for name, value in headers or ())
