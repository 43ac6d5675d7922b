"""Dead letters, and their inputs that may be sent again, read from their topic: any service may forge a letter."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator

from pydantic import Field

from refold.client.reading.history import ReadRecord
from refold.client.reading.model import ReadModel
from refold.core.errors import ConflictError, FoldError, MalformedError, NotFoundError, UsageError
from refold.core.ids import RunId, home, parse_callback_token, run_id
from refold.core.messages import DeadLetter
from refold.core.topics import DEAD_LETTER, RUN_REQUESTED, RUN_SIGNALLED
from refold.core.wire import codec
from refold.engine.ports.log import LogReader, Record


class Letter(ReadModel):
    """A dead letter in a line. `letter` is its own position, `from` the position of the input."""

    letter: str
    lies: str = Field(serialization_alias="from")
    topic: str
    partition: int
    offset: int
    code: str
    reason: str
    service: str
    at_ms: int


class WholeLetter(Letter):
    """A dead letter with the bytes of the input, as text and in hex."""

    key: str
    value: str
    value_hex: str
    key_hex: str


def letters_in(records: Iterable[ReadRecord]) -> Iterator[tuple[str, DeadLetter]]:
    """Dead letters, each with its position as the command line prints it."""
    for record in records:
        service = record.topic.removeprefix(DEAD_LETTER).removeprefix("-")
        try:
            content = codec.decode(DeadLetter, record.value or b"")
        except (MalformedError, FoldError) as error:
            why, key = f"this dead letter cannot be read itself: {error.message}", record.key or b""
            content = DeadLetter(record.topic, record.partition, record.offset, error.code, why, key, b"", "", 0)
        yield f"{service and service + '/'}{record.partition}/{record.offset}", content


def letter_of(place: str, content: DeadLetter) -> Letter:
    return Letter(**_letter_fields(place, content))


def whole_letter(place: str, content: DeadLetter) -> WholeLetter:
    key, value = (part.decode(errors="backslashreplace") for part in (content.key, content.value))
    hexes = {"value_hex": content.value.hex(), "key_hex": content.key.hex()}
    return WholeLetter(**_letter_fields(place, content), key=key, value=value, **hexes)


def _letter_fields(place: str, content: DeadLetter) -> dict[str, object]:
    names = ("topic", "partition", "offset", "code", "reason", "service", "at_ms")
    lies = f"{content.topic}/{content.partition}/{content.offset}"
    return {"letter": place, "lies": lies, **{name: getattr(content, name) for name in names}}


INPUTS = (RUN_REQUESTED, RUN_SIGNALLED)
"""Topics whose records may be sent again."""


def find_letter(reader: LogReader, place: str) -> DeadLetter:
    """Return the dead letter at `[SERVICE/]PARTITION/OFFSET`. **Raises** UsageError, NotFoundError."""
    parts = re.fullmatch("(?:(approval|executor|source)/)?([0-9]{1,9})/([0-9]{1,18})", place)
    if parts is None:
        raise UsageError(f"{place[:80]!r} is not a dead letter", hint="write it as `refold deadletter list` does")
    topic, partition = f"{DEAD_LETTER}-{parts[1]}" if parts[1] else DEAD_LETTER, int(parts[2])
    for record in reader.scan(topic, partition) if partition < reader.partitions(topic) else ():
        if record.offset == int(parts[3]) and record.value is not None:
            return next(letters_in([record]))[1]
    raise NotFoundError(f"there is no dead letter {place}", hint="`refold deadletter list` shows all")


def replayed(reader: LogReader, place: str) -> tuple[Record, int]:
    """Return the input of a dead letter from its topic, and its home partition. **Raises** as `original`."""
    if place.count("/") > 1:
        hint = "vote again, or have the planner ask again"
        raise UsageError(f"{place[:80]} is a letter of a service whose inputs are not sent again", hint=hint)
    content, partitions = find_letter(reader, place), reader.partitions(RUN_REQUESTED)

    def records() -> Iterable[Record]:
        return reader.scan(content.topic, content.partition) if content.partition in range(partitions) else ()

    record = original(content, records, letter=place)
    return record, home_of(record, partitions)


def original(
    content: DeadLetter, records: Callable[[], Iterable[Record]], *, letter: str, topics: Collection[str] = INPUTS
) -> Record:
    """Return a letter's input, out of `records` from its claimed place on. **Raises** UsageError for another topic than
    `topics`, NotFoundError, ConflictError for other content."""
    hint = f"`refold deadletter show {letter}`"
    if content.topic not in topics:
        raise UsageError(f"a letter from {content.topic} is not sent again, only {' and '.join(topics)} are", hint=hint)
    # Any service may forge a letter: the input itself has to lie where the letter claims.
    match = next((record for record in records() if record.offset >= content.offset), None)
    place = f"{content.topic}/{content.partition}/{content.offset}"
    if match is None or match.offset != content.offset or match.value is None:
        raise NotFoundError(f"{place} is gone, so nothing vouches for letter {letter}", hint=hint)
    if (match.key or b"", match.value) != (content.key, content.value):
        raise ConflictError(f"{place} is not what letter {letter} says that it is", hint=hint)
    return match


def home_of(record: Record, partitions: int) -> int:
    """Return the home of an input's run, or the input's partition if its key names none."""
    try:
        key = (record.key or b"").decode()
        return home(_run_in_key(key), partitions)
    except (MalformedError, UnicodeDecodeError):
        return record.partition


def _run_in_key(key: str) -> RunId:
    try:
        return parse_callback_token(key)
    except MalformedError:
        return run_id(key.partition("/")[0])
