"""Dead letters: inputs that no service could use."""

from collections.abc import Iterable, Iterator

from pydantic import Field

from refold.client.reading.history import ReadRecord
from refold.client.reading.model import ReadModel
from refold.core.errors import FoldError, MalformedError
from refold.core.messages import DeadLetter
from refold.core.topics import DEAD_LETTER
from refold.core.wire import codec


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
    return Letter(**_row(place, content))


def whole_letter(place: str, content: DeadLetter) -> WholeLetter:
    key, value = (part.decode(errors="backslashreplace") for part in (content.key, content.value))
    hexes = {"value_hex": content.value.hex(), "key_hex": content.key.hex()}
    return WholeLetter(**_row(place, content), key=key, value=value, **hexes)


def _row(place: str, content: DeadLetter) -> dict[str, object]:
    names = ("topic", "partition", "offset", "code", "reason", "service", "at_ms")
    lies = f"{content.topic}/{content.partition}/{content.offset}"
    return {"letter": place, "lies": lies, **{name: getattr(content, name) for name in names}}
