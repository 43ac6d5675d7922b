"""An event in a panel: a model's messages, changes, causes, and its record in Kafka."""

import json
import shlex
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple

from refold.client.reading.diff import RunDiff
from refold.client.reading.history import Run
from refold.client.reading.messages import ModelMessages, conversation_of, messages_of
from refold.client.reading.model import Pointing
from refold.client.reading.run import RunEvent
from refold.client.reading.why import Why, entry_with
from refold.client.reading.words import with_ellipsis
from refold.console.pages.wording import DECIDED, SaidLine, name_of, said_lines
from refold.core.errors import NotFoundError
from refold.core.topics import RUN_LOG
from refold.core.wire.blobs import MARK, size_of
from refold.core.wire.headers import cloud_event
from refold.core.wire.schemas import locked

MOST_CHANGED = 120
"""Characters of a changed value."""
MOST_HEX = 256
"""Bytes of a record that are shown; larger ones are downloaded."""
MOST_LINES = 400
"""Lines of a conversation on one page: the newest."""


class ShownRecord(NamedTuple):
    """Record of an event. `schema`: id, subject and version; `dump`: its first bytes in hex."""

    size: int
    digest: str
    schema: str
    headers: list[tuple[str, str]]
    dump: list[str]
    commands: list[tuple[str, str]]


class LargeValue(NamedTuple):
    """SHA-256 and bytes of a value in the blob store: a page offers a download in place of the value."""

    digest: str
    size: int


class EventPanel(NamedTuple):
    """An event with all details; `saw` and `lines` are a model's messages."""

    event: RunEvent
    changes: list[tuple[str, str, str]]
    why: Why
    record: ShownRecord
    saw: ModelMessages | None
    lines: list[SaidLine]

    @property
    def streaming(self) -> str:
        """Id of the call, if a model may be answering it."""
        return self.saw.call_id if self.saw and self.event.type in ("CallProposed", "CallDispatched") else ""


def large_value(value: Any) -> LargeValue | None:
    return LargeValue(value[len(MARK) :].partition(":")[0], size_of(value)) if isinstance(value, Pointing) else None


def saw_model(run: Run, event: RunEvent, text_of: Any) -> tuple[ModelMessages | None, list[SaidLine]]:
    """Return the messages that the model of an event's call received, and their lines; none for other events."""
    if not event.type.startswith("Call") or not (step := event.event.get("step", 0)):
        return None, []
    try:
        messages = messages_of(run.state, step, text_of)
    except NotFoundError:
        return None, []
    return messages, [line._replace(step=step) for message in messages.messages for line in said_lines(message)]


def conversation(run: Run, text_of: Any) -> list[SaidLine]:
    lines_at = list[tuple[int, SaidLine]]()
    for turn in conversation_of(run.state, text_of):
        proved = "" if turn.verified else f"not proven: {turn.why}"
        new = [line for message in turn.messages for line in said_lines(message)]
        new += said_lines(turn.answer) if turn.answer is not None else []
        name, seq = run.timeline.steps[turn.step - 1].name.partition("__model.")[0], run.state.seqs[turn.step - 1]
        lines_at += [
            (2 * turn.step, line._replace(step=turn.step, seq=seq, agent=name, note=proved))
            for line in (new or [SaidLine("request", "note", "")] if proved else new)
        ]
    lines_at += _lines_of_people(run)
    lines_at.sort(key=lambda pair: pair[0])
    return [*_without_repeated_instructions(line for _, line in lines_at)]


def _without_repeated_instructions(lines: Iterable[SaidLine]) -> Iterator[SaidLine]:
    shown: dict[str, str] = {}
    for line in lines:
        if line.who != "instructions":
            yield line
        elif shown.get(line.agent) != line.text:
            shown[line.agent] = line.text
            yield line


def _lines_of_people(run: Run) -> Iterator[tuple[int, SaidLine]]:
    for step in run.timeline.steps:
        seq, behind = run.state.seqs[step.step - 1], 2 * step.step + 1
        for ask in step.approvals:
            if ask.verdict:
                words = f"{DECIDED.get(ask.verdict, ask.verdict)} {name_of(step)}", ask.said
                who = ", ".join(ask.actors) or "nobody"
                yield behind, SaidLine(who, "people", "\n".join(filter(None, words)), step.step, seq)
        if step.kind in ("wait", "callback") and step.actor:
            yield behind, SaidLine(step.actor, "people", step.result, step.step, seq)


def record_of(run: Run, event: RunEvent, prefix: str, base: str) -> ShownRecord:
    """Return the Kafka record of an event, with commands that read it: `prefix` of topics, `base` URL of the API."""
    judged, entry = entry_with(run, event.seq)
    value, of = judged.record.value or b"", run.state.run_id
    number = int.from_bytes(value[1:5], "big")
    schema = next((f"{number}: {line.subject} version {line.version}" for line in locked() if line.id == number), "")
    sent = cloud_event(RUN_LOG, of, id=judged.id.hex(), source=entry.actor, at_ms=entry.at_ms)
    place = f"-t {shlex.quote(prefix + event.topic)} -p {event.partition} -o {event.offset} -c 1"
    return ShownRecord(
        len(value),
        sha256(value).hexdigest(),
        schema,
        [(name, text.decode(errors="replace")) for name, text in sent],
        [_hex_line(value, at) for at in range(0, min(len(value), MOST_HEX), 16)],
        [
            ("kcat", f'kcat -b "$KAFKA" -C {place} -f "%k\\n%h\\n%s"'),
            ("curl", f"curl {shlex.quote(f'{base}/api/runs/{of}/events?after_seq={event.seq - 1}&limit=1')}"),
            ("refold", f"refold run show {of} --at {event.seq}"),
        ],
    )


def _hex_line(value: bytes, at: int) -> str:
    part = value[at : at + 16]
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
    return f"{at:06x}  {part.hex(' '):<47}  {text}"


def changes_of(diff: RunDiff) -> list[tuple[str, str, str]]:
    changes = [(row.name, _short(row.left), _short(row.right)) for row in diff.fields]
    for step in diff.steps:
        if step.change == "changed":
            changes += [(f"step {step.right} {row.name}", _short(row.left), _short(row.right)) for row in step.fields]
        else:
            name = f"step {step.right or step.left}"
            changes.append((name, *((step.name, "") if step.change == "removed" else ("", step.name))))
    return changes


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return with_ellipsis(text if value not in (None, "", [], {}) else "nothing", MOST_CHANGED)
