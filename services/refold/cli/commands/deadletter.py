"""`refold deadletter`: inputs that no service could use, and their replay."""

from itertools import chain
from typing import Annotated

from refold.cli import output
from refold.cli.platform import Listing, Shell, agree
from refold.client.letters import find_letter, letter_of, letters_in, replayed, whole_letter
from refold.core.topics import DEAD_LETTERS

LetterArgument = Annotated[
    str, "[SERVICE/]PARTITION/OFFSET", "Position of the dead letter, as `refold deadletter list` prints it."
]


def list_letters(*, code: Annotated[str, "Only dead letters with this code."] = "", shell: Listing) -> None:
    """List dead letters, the oldest first."""
    letters = letters_in(chain.from_iterable(map(shell.platform.runs.reader.scan, DEAD_LETTERS)))
    rows = sorted((letter_of(*laid) for laid in letters if code in ("", laid[1].code)), key=lambda row: row.at_ms)
    shell.print_rows(rows[-shell.limit :], "letter from code reason", "[green]no dead letters[/]")


def show_letter(letter: LetterArgument, *, shell: Shell) -> None:
    """Show a dead letter in full."""
    row = whole_letter(letter, find_letter(shell.platform.runs.reader, letter)).dump()
    names = ("letter", "from", "code", "reason", "service", "key", "value")
    shell.print(row, "\n".join(f"{name:<8} {output.escape(str(row[name]), 4_000)}" for name in names))


def replay_letter(
    letter: LetterArgument,
    *,
    yes: Annotated[bool, "Skip the confirmation."] = False,
    dry_run: Annotated[bool, "Show the input and its topic; send nothing."] = False,
    shell: Shell,
) -> None:
    """Publish the input of a dead letter again, from its topic, to the partition it belongs to."""
    platform = shell.platform
    record, partition = replayed(platform.runs.reader, letter)
    topic, key, value = record.topic, record.key or b"", record.value or b""
    summary = f"{len(value)} bytes with key {key.decode(errors='backslashreplace')!r} to {topic}/{partition}"
    if dry_run:
        row = {"sent": False, "topic": topic, "partition": partition}
        shell.print(row, output.escape(f"would send {summary}"))
        return
    agree(f"Send {summary}?", "nothing was sent", yes=yes)
    at = platform.publisher.send_raw(topic, partition, key=key, value=value, headers=record.read_headers() or ())
    row = {"sent": True, "topic": topic, "partition": at[0], "offset": at[1]}
    shell.print(row, output.escape(f"sent {summary}, offset {at[1]}"))
