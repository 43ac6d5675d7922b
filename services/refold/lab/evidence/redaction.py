"""Redaction: a value of an entry becomes a pointer (`blob:SHA-256:BYTES`), whose digest stays. The entry keeps its id,
which its bytes no longer prove. A decision loses a token that contains such a value, and with it the signature."""

import dataclasses
from collections.abc import Collection

from refold.core import events
from refold.core.errors import UsageError
from refold.core.events import Entry, Event
from refold.core.wire import codec
from refold.core.wire.blobs import is_pointer, pointer_of
from refold.engine.ports.log import Record

ARGS, RESULTS = "args", "results"
RULES = (ARGS, RESULTS)
_FIELDS = dict.fromkeys(("args", "asked", "edit", "input"), ARGS) | dict.fromkeys(("result", "data", "text"), RESULTS)
"""Rule that redacts each field of events."""
_IN_TOKEN = {"edit": ARGS, "amend": ARGS, "answer": RESULTS}
"""Rule that redacts a decision's token, by verdict: other tokens contain only digests."""


def rules_of(text: str) -> tuple[str, ...]:
    """Parse rules such as `args,results`. **Raises** UsageError for others."""
    named = [part for raw in text.split(",") if (part := raw.strip())]
    if wrong := sorted(set(named) - set(RULES)):
        raise UsageError(f"nothing is redacted by {wrong[0][:40]!r}", hint="--redact args, results, or args,results")
    return tuple(rule for rule in RULES if rule in named)


def without_values(record: Record, rules: Collection[str]) -> Record:
    """Return an entry's record with its values redacted; the same record if there are none."""
    entry = codec.decode(Entry, record.value or b"")
    redacted = [_redacted_event(event, rules) for event in entry.events]
    if redacted == entry.events:
        return record
    return record._replace(value=codec.encode(dataclasses.replace(entry, events=redacted)))


def is_redacted(entry: Entry, rules: Collection[str]) -> bool:
    """True if the rules have replaced values, and none is left."""
    redacted = [_redacted_event(event, rules) for event in entry.events]
    values = (getattr(event, name, "") for event in entry.events for name, rule in _FIELDS.items() if rule in rules)
    hidden = any(map(is_pointer, values)) or any(is_hidden(event, rules) for event in entry.events)
    return redacted == entry.events and hidden


def is_hidden(event: Event, rules: Collection[str]) -> bool:
    return _has_values_in_token(event, rules) and is_pointer(getattr(event, "token", ""))


def _has_values_in_token(event: Event, rules: Collection[str]) -> bool:
    return isinstance(event, events.ApprovalDecided) and _IN_TOKEN.get(event.verdict) in rules


def _redacted_event(event: Event, rules: Collection[str]) -> Event:
    names = [name for name, rule in _FIELDS.items() if rule in rules]
    if _has_values_in_token(event, rules):
        names.append("token")
    texts = {name: text for name in names if (text := getattr(event, name, "")) and not is_pointer(text)}
    if not texts:
        return event
    hidden = {name: pointer_of(text.encode()) for name, text in texts.items()}
    return dataclasses.replace(event, **hidden)  # type: ignore[arg-type]
