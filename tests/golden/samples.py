"""Golden samples: what version 1 of every schema wrote, kept for as long as anybody may have such records.

`messages.txt` has a line per event and message: its name and the framed value in hex (an event inside an entry).
`histories.json` has whole runs: records in hex, and the facts that they fold to. Both only grow. For a new event or
message add a line with `python -m tests.golden.samples`, which never touches one that is there.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, asdict, fields
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, get_args

from refold.core.events import (
    Cause,
    Continued,
    Earlier,
    Entry,
    Event,
    Failure,
    ForkedFrom,
    Requirement,
    RetryPolicy,
    RunCompleted,
    RunFailed,
    RunRetried,
    Spendable,
    Used,
)
from refold.core.messages import EarlierCall, MemberAgent, MemberTool
from refold.core.run.state import RunState
from refold.core.wire import codec
from tests.core.histories import Log, calling, doubting, operation, random_log, read_fold, signal, started

HERE = Path(__file__).parent
MESSAGES, HISTORIES = HERE / "messages.txt", HERE / "histories.json"

EVENTS: dict[str, type] = {cls.__name__: cls for cls in get_args(Event)}
KINDS: dict[str, type] = EVENTS | {cls.__name__: cls for cls in codec.SUBJECTS}

_FIRST = list(EVENTS)[:52]
"""The events of version 1 of the run log, which its golden entry holds."""

_VALUES: dict[Any, Any] = {
    int: -1_700_000_000_123,
    str: 'ä€😀 "quoted"\n',
    bool: True,
    bytes: bytes(range(0, 256, 17)),
    dict[str, str]: {"team": "shop", "": "ü"},
    Cause: Cause("run-requested", 11, 2**40),
    Cause | None: Cause("tool-completed", 0, 0),
    Failure: Failure("boom", "it broke", "line 1\nline 2"),
    Failure | None: Failure("boom", "it broke"),
    RetryPolicy: RetryPolicy(5, 100, 60_000),
    Requirement: Requirement(["ada", "role:lead"], 2, False, 60_000, "escalate", 1_000, ["*"], 5_000, "look"),
    Used: Used(10, 20, 3, 4, 5),
    Used | None: Used(10, 20, 3, 4, 5),
    Spendable | None: Spendable(10, 20, 3, 4, 50, "ask", 6, "run-1"),
    ForkedFrom: ForkedFrom("run-0", 7, bytes(range(16)), ["run-9", "run-0"]),
    Continued | None: Continued(bytes(range(16)), bytes(range(24))),
    ForkedFrom | None: ForkedFrom("run-0", 7, bytes(range(16)), ["run-0"]),
    Spendable: Spendable(10, 20, 3, 4, 50, "ask", 6, "run-1"),
    list[MemberAgent]: [MemberAgent("order", "2", {"code": "c0de"}), MemberAgent("ä€😀", "", {})],
    list[MemberTool]: [MemberTool("pay", "1", "keyed", "bank", ["money", "€"], True, '{"type":"object"}')],
    list[EarlierCall]: [EarlierCall(1, '{"n":1}', "null"), EarlierCall(2, "{}", '"ä€😀"')],
    list[Earlier]: [
        Earlier(1, "failed", "it broke"),
        Earlier(2, "did_not_happen", "I looked", "ada", 1_700_000_000_123),
    ],
    list[str]: ["ada", "ä€😀", ""],
    list[int]: [3, 0, -(2**40)],
}


def sample(cls: type) -> Any:
    """An instance with a telling value in every field that it had at first; one that came later keeps its default."""
    names = _first_fields(cls)
    return cls(**{spec.name: _value(spec) for spec in fields(cls) if spec.name in names or not _optional(spec)})


def framed(name: str) -> bytes:
    """The sample as a record's value."""
    if name in EVENTS:
        return codec.encode(Entry("run-1", 1, b"", 0, None, "planner-1", b"nonce", [sample(EVENTS[name])]))
    return codec.encode(sample(KINDS[name]))


def unframed(name: str, value: bytes) -> Any:
    """What is in a recorded value: the event or the message."""
    if name in EVENTS:
        (event,) = codec.decode(Entry, value).events
        return event
    return codec.decode(KINDS[name], value)


def recorded() -> dict[str, bytes]:
    """The golden values by name."""
    lines = MESSAGES.read_text().splitlines() if MESSAGES.exists() else []
    return {name: bytes.fromhex(data) for name, data in (line.split() for line in lines)}


def histories() -> dict[str, dict[str, Any]]:
    """The golden histories by name."""
    found: dict[str, dict[str, Any]] = json.loads(HISTORIES.read_text()) if HISTORIES.exists() else {}
    return found


def facts(state: RunState) -> dict[str, Any]:
    """What a state says, as plain data that outlives changes of how it is kept."""
    return {
        "run": state.run_id,
        "status": state.status,
        "head": [state.head.id.hex(), state.head.seq],
        "steps": [_plain(step) for step in state.steps],
        "seqs": list(state.seqs),
        "open": {str(step): [o.phase, o.seq, o.due_ms, o.attempt, o.dispatches] for step, o in state.open.items()},
        "outcomes": {str(step): [at, _plain(outcome)] for step, (at, outcome, _) in state.outcomes.items()},
        "resolved": {str(step): _plain(said) for step, said in state.resolved.items()},
        "late": {str(step): _plain(late[-1]) for step, late in state.late.items()},
        "end": _plain(state.end),
    }


def covers(actual: Any, expected: Any) -> bool:
    """Whether all that was expected is there; what came later (a field with its default) may be there too."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            name in actual and covers(actual[name], expected[name]) for name in expected
        )
    if isinstance(expected, list):
        pairs = zip(actual, expected, strict=True)
        return len(actual) == len(expected) and all(covers(one, other) for one, other in pairs)
    return bool(actual == expected)


def _plain(event: Any) -> Any:
    return {"is": type(event).__name__, **asdict(event)} if event is not None else None


@cache
def _first_fields(cls: type) -> set[str]:
    """The fields in the oldest schema that has the class."""
    for version in count(1):
        path = Path(__file__).parents[2] / "schemas" / f"{codec.SUBJECTS.get(cls, 'run-log')}.v{version}.avsc"
        if not path.exists():
            break
        if found := _fields_of(json.loads(path.read_text()), cls.__name__):
            return found
    return {spec.name for spec in fields(cls)}


def _fields_of(schema: Any, name: str) -> set[str]:
    if isinstance(schema, dict) and schema.get("name") == name and "fields" in schema:
        return {field["name"] for field in schema["fields"]}
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return next((found for part in inner if (found := _fields_of(part, name))), set())


def _optional(spec: Field[Any]) -> bool:
    return spec.default is not MISSING or spec.default_factory is not MISSING


def _value(spec: Field[Any]) -> Any:
    return [sample(EVENTS[name]) for name in _FIRST] if spec.name == "events" else _VALUES[spec.type]


def _cancelled() -> Log:
    log = calling()
    log.propose("once")
    log.feed(log.result(1, "unknown"))
    log.feed(signal("cancel", '{"reason":"enough"}'))
    return log


def _overruled() -> Log:
    log = doubting()
    log.feed(operation("resolve", '{"step":1,"attempt":1,"verdict":"did_not_happen","comment":"I looked"}'))
    log.feed(log.result(late=True))
    return log


def _failed() -> Log:
    log = calling()
    log.feed(log.result(1, "failed"))
    log.append([RunFailed(Failure("boom", "it broke"))])
    return log


def _retried() -> Log:
    log = _failed()
    log.append([RunRetried("operator")])
    log.append([RunCompleted("1")])
    return log


def _append() -> None:
    known = recorded()
    added = [f"{name} {framed(name).hex()}\n" for name in KINDS if name not in known]
    with MESSAGES.open("a") as file:
        file.writelines(added)
    runs: dict[str, Log] = {"started": started(), "cancelled": _cancelled(), "overruled": _overruled()}
    runs |= {"failed": _failed(), "retried": _retried()}
    runs |= {f"random-{seed}": random_log(seed, inputs=60) for seed in (3, 14, 15)}
    kept = histories()
    for name, log in runs.items():
        kept.setdefault(
            name,
            {
                "records": [[key.hex(), value.hex()] for key, value in log.records],
                "facts": facts(read_fold(log.records)),
            },
        )
    HISTORIES.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    _append()
