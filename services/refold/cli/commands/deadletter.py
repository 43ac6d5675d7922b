"""`refold deadletter`: inputs that no service could use, and their replay."""

from itertools import chain
from typing import Annotated

from refold.cli import output
from refold.cli.apps import load_app
from refold.cli.platform import Listing, Shell, agree
from refold.client.letters import find_letter, letter_of, letters_in, original, replayed, whole_letter
from refold.client.platform import Platform
from refold.core.errors import UsageError
from refold.core.topics import DEAD_LETTERS
from refold.engine.adapters.kafka.foreign import inputs_of
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.ports.log import Outgoing

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
    app: Annotated[str, "APP", "App whose source maps the record of a letter `source/...` again."] = "",
    yes: Annotated[bool, "Skip the confirmation."] = False,
    dry_run: Annotated[bool, "Show the input and its topic; send nothing."] = False,
    shell: Shell,
) -> None:
    """Publish the input of a dead letter again, from its topic, to the partition it belongs to."""
    if letter.startswith("source/"):
        inputs = _mapped_again(letter, app, shell.platform)
    else:
        record, partition = replayed(shell.platform.runs.reader, letter)
        own = record.key or b"", record.value or b"", record.read_headers() or ()
        inputs = [Outgoing(record.topic, partition, *own, 0)]
    for topic, partition, key, value, headers, *_ in inputs:
        summary = f"{len(value or b'')} bytes with key {key.decode(errors='backslashreplace')!r} to {topic}/{partition}"
        if dry_run:
            row = {"sent": False, "topic": topic, "partition": partition}
            shell.print(row, output.escape(f"would send {summary}"))
            continue
        agree(f"Send {summary}?", "nothing was sent", yes=yes)
        at = shell.platform.publisher.send_raw(topic, partition, key=key, value=value, headers=headers)
        row = {"sent": True, "topic": topic, "partition": at[0], "offset": at[1]}
        shell.print(row, output.escape(f"sent {summary}, offset {at[1]}"))


def _mapped_again(letter: str, app: str, platform: Platform) -> list[Outgoing]:
    """Inputs of a source's record, which its topic still has, by the app's code of today. **Raises** as `original`."""
    content, settings = find_letter(platform.runs.reader, letter), platform.settings
    source = load_app(app).sources.get(content.topic) if app else None
    if source is None:
        raise UsageError(f"the source {content.topic} maps the record again", hint="--app names the app that has it")
    plain = settings.kafka.model_copy(update={"prefix": "", "partitions": platform.runs.partitions})
    rest = KafkaLogReader(plain).since(content.topic, {content.partition: content.offset})
    record = original(content, rest.to_the_end, letter=letter, topics=(content.topic,))
    return inputs_of(source, record, settings.model_copy(update={"kafka": plain}), platform.source)
