"""`refold deadletter`: inputs that no service could use, and how to give them another chance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import output
from refold.cli.errors import FAILED, fail
from refold.cli.platform import DataOption, JsonOption, KafkaOption, Platform, connect
from refold.core.errors import NotFoundError, UsageError
from refold.core.topics import DEAD_LETTER

if TYPE_CHECKING:
    from refold.core.messages import DeadLetter

app = typer.Typer(help="Look at inputs that nobody could use, and send them again.", no_args_is_help=True)

LetterArgument = Annotated[
    str, typer.Argument(metavar="PARTITION/OFFSET", help="Where the dead letter lies, as `list` prints it.")
]


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter and where it lies."""

    partition: int
    offset: int
    content: DeadLetter

    @property
    def name(self) -> str:
        """How it is called on the command line."""
        return f"{self.partition}/{self.offset}"


@app.command("list")
def list_(
    code: Annotated[str, typer.Option("--code", help="Only those with this code.")] = "",
    *,
    limit: Annotated[int, typer.Option("--limit", help="The newest so many.", min=1)] = 50,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """List dead letters, the oldest first."""
    found = sorted(_letters(connect(kafka=kafka, data=data)), key=lambda letter: letter.content.at_ms)
    rows = [_row(letter) for letter in found if not code or letter.content.code == code][-limit:]
    if json_:
        output.emit(rows)
    elif not rows:
        output.say("[green]no dead letters[/]")
    else:
        columns = ("letter", "from", "code", "reason")
        output.table(columns, [tuple(output.escape(str(row[name])) for name in columns) for row in rows])


@app.command()
def show(letter: LetterArgument, *, kafka: KafkaOption = "", data: DataOption = "", json_: JsonOption = False) -> None:
    """Show a dead letter whole."""
    found = _find(connect(kafka=kafka, data=data), letter)
    row = _row(found) | {"key": _text(found.content.key), "value": _text(found.content.value)}
    row |= {"value_hex": found.content.value.hex(), "key_hex": found.content.key.hex()}
    if json_:
        output.emit(row)
        return
    for name in ("letter", "from", "code", "reason", "service", "key", "value"):
        output.say(f"{name:<8} {output.escape(str(row[name]), 4_000)}")


@app.command()
def replay(
    letter: LetterArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and where to.")] = False,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Publish the original bytes to their topic again, in the partition where they belong."""
    platform = connect(kafka=kafka, data=data)
    found = _find(platform, letter)
    content = found.content
    if content.topic == DEAD_LETTER or len(content.value) == 0:
        raise UsageError(f"dead letter {letter} has no input to send", hint=f"`refold deadletter show {letter}`")
    partition = _home(platform, content)
    what = f"{len(content.value)} bytes with key {_text(content.key)!r} to {content.topic}/{partition}"
    if dry_run:
        _tell({"sent": False, "topic": content.topic, "partition": partition}, f"would send {what}", as_json=json_)
        return
    if not yes and not typer.confirm(f"Send {what}?"):
        output.say("nothing was sent")
        fail(FAILED)
    key = content.key or b""
    at = platform.publisher.send_raw(content.topic, partition, key=key, value=content.value, headers=[])
    row = {"sent": True, "topic": content.topic, "partition": at[0], "offset": at[1]}
    _tell(row, f"sent {what}, offset {at[1]}", as_json=json_)


def _letters(platform: Platform) -> Iterator[Letter]:
    from refold.core.errors import FoldError, MalformedError
    from refold.core.messages import DeadLetter
    from refold.core.wire import codec

    for record in platform.runs.reader.scan(DEAD_LETTER):
        try:
            content = codec.decode(DeadLetter, record.value or b"")
        except (MalformedError, FoldError) as error:
            reason = f"this dead letter cannot be read itself: {error.message}"
            content = DeadLetter(
                DEAD_LETTER, record.partition, record.offset, error.code, reason, record.key or b"", b"", "", 0
            )
        yield Letter(record.partition, record.offset, content)


def _find(platform: Platform, name: str) -> Letter:
    partition, _, offset = name.partition("/")
    if not (partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
        raise UsageError(f"{name!r} is not a dead letter", hint="write PARTITION/OFFSET, as `refold deadletter list`")
    for letter in _letters(platform):
        if (letter.partition, letter.offset) == (int(partition), int(offset)):
            return letter
    raise NotFoundError(f"there is no dead letter {name}", hint="`refold deadletter list` shows all")


def _home(platform: Platform, content: DeadLetter) -> int:
    """The home of the run that the key names, or the partition where the input lay if it names none."""
    from refold.core.errors import MalformedError
    from refold.core.ids import home, run_id

    try:
        return home(run_id(content.key.decode().partition("/")[0]), platform.runs.partitions)
    except (MalformedError, UnicodeDecodeError):
        return content.partition


def _row(letter: Letter) -> dict[str, Any]:
    content = letter.content
    return {
        "letter": letter.name,
        "from": f"{content.topic}/{content.partition}/{content.offset}",
        "topic": content.topic,
        "partition": content.partition,
        "offset": content.offset,
        "code": content.code,
        "reason": content.reason,
        "service": content.service,
        "at_ms": content.at_ms,
    }


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def _tell(row: dict[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        output.emit(row)
    else:
        output.say(output.escape(text))
