"""Avro schemas in `schemas/`, exported from the dataclasses in `core`. An exported file and its lock line never change:
records name them for years. A changed class becomes a new version under a new id, if it reads all older ones."""

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import py_avro_schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.name import Names
from avro.schema import Schema, make_avsc_object

from refold.core.errors import ConflictError
from refold.core.wire import resources, schemas
from refold.core.wire.codec import SUBJECTS
from refold.core.wire.schemas import Registered

_OPTIONS = py_avro_schema.Option.JSON_INDENT_2 | py_avro_schema.Option.JSON_APPEND_NEWLINE
_HEADER = """\
# The Avro schemas of Refold, one a line: id, subject, version, SHA-256 of the file <subject>.v<version>.avsc.
# Append-only. The id is what every record carries in its first five bytes (a zero byte, then the id, big-endian):
# never edit or drop a line or a file, records that name it lie in topics for years. Any registry can be loaded with
# the same ids. `make schemas` appends what changed in Python, `make schemas CHECK=1` fails on a difference
# and on a change that is not BACKWARD_TRANSITIVE (the newest version reads what any older one wrote).
"""


def generate(message: type) -> str:
    text: bytes = py_avro_schema.generate(message, namespace="refold", options=_OPTIONS)
    return text.decode()


def export_schemas(folder: Path | None = None, subjects: dict[type, str] | None = None) -> list[Registered]:
    """Append changed classes as new versions and return them. **Raises** ConflictError, with nothing written, if older
    records would become unreadable."""
    folder, subjects = folder or resources.resource("schemas"), subjects or SUBJECTS
    lines = _lock_lines(folder)
    if problems := _compatibility_problems(folder, lines, subjects) + _file_problems(folder, lines):
        hint = "give new fields a default, and leave exported files as they are"
        raise ConflictError(f"the schemas cannot be exported: {'; '.join(problems)}", hint=hint, problems=problems)
    added: list[Registered] = []
    for message, subject in subjects.items():
        text, newest = generate(message), _newest_line(lines, subject)
        if newest and _is_same_schema(text, _schema_path(folder, newest).read_text()):
            continue
        number = max((line.id for line in [*lines, *added]), default=0) + 1
        version = newest.version + 1 if newest else 1
        line = Registered(number, subject, version, sha256(text.encode()).hexdigest())
        _schema_path(folder, line).write_text(text)
        added.append(line)
    if added:
        path = folder / "schemas.lock"
        old = path.read_text() if path.exists() else _HEADER
        path.write_text(old + "".join(f"{line.id} {line.subject} {line.version} {line.sha256}\n" for line in added))
    schemas.registered.cache_clear()
    return added


def check_schemas(folder: Path | None = None, subjects: dict[type, str] | None = None) -> list[str]:
    """Differences, broken files and unreadable older versions, as texts."""
    folder, subjects = folder or resources.resource("schemas"), subjects or SUBJECTS
    lines = _lock_lines(folder)
    if problems := _lock_problems(lines) + _file_problems(folder, lines):
        return problems
    for message, subject in subjects.items():
        newest = _newest_line(lines, subject)
        if newest is None:
            problems.append(f"{subject}: never exported; run `make schemas`")
        elif not _is_same_schema(generate(message), _schema_path(folder, newest).read_text()):
            problems.append(f"{subject}: {message.__name__} differs from version {newest.version}; run `make schemas`")
    orphans = [line.subject for line in lines if line.version == 1 and line.subject not in subjects.values()]
    problems += [f"{subject}: no class has this subject any more" for subject in orphans]
    return problems + _compatibility_problems(folder, lines, subjects)


def _lock_lines(folder: Path) -> list[Registered]:
    path = folder / "schemas.lock"
    return schemas.lock(path.read_text()) if path.exists() else []


def _schema_path(folder: Path, line: Registered) -> Path:
    return folder / schemas.file_name(line)


def _newest_line(lines: list[Registered], subject: str) -> Registered | None:
    return max((line for line in lines if line.subject == subject), key=lambda line: line.version, default=None)


def _lock_problems(lines: list[Registered]) -> list[str]:
    problems = []
    if [line.id for line in lines] != list(range(1, len(lines) + 1)):
        problems.append("schemas.lock: the ids are not 1, 2, 3 ... in order; a line was edited or dropped")
    for subject in dict.fromkeys(line.subject for line in lines):
        versions = [line.version for line in lines if line.subject == subject]
        if versions != list(range(1, len(versions) + 1)):
            problems.append(f"schemas.lock: the versions of {subject} are not 1, 2, 3 ... in order")
    return problems


def _file_problems(folder: Path, lines: list[Registered]) -> list[str]:
    problems = []
    for line in lines:
        path = _schema_path(folder, line)
        if not path.exists():
            problems.append(f"{path.name}: the file is gone; restore it from version control")
        elif sha256(path.read_bytes()).hexdigest() != line.sha256:
            problems.append(f"{path.name}: the file was changed after its export; restore it from version control")
    return problems


def _compatibility_problems(folder: Path, lines: list[Registered], subjects: dict[type, str]) -> list[str]:
    problems = []
    for message, subject in subjects.items():
        reader = json.loads(generate(message))
        for line in lines:
            path = _schema_path(folder, line)
            if line.subject == subject and path.exists():
                reasons = conflicts(reader=reader, writer=json.loads(path.read_text()))
                problems += [f"{subject}: not compatible with version {line.version}: {reason}" for reason in reasons]
    return problems


def conflicts(*, reader: Any, writer: Any) -> list[str]:
    """Reasons and places where the reader cannot read the writer's data; a conflict inside a named type is repeated for
    each type that contains it. **Shape**: schemas as parsed JSON."""
    read, written = Names(), Names()
    new, old = make_avsc_object(reader, read), make_avsc_object(writer, written)
    if not _conflict_text(new, old):
        return []
    pairs = {str(new.get_prop("name") or "the schema"): (new, old)}
    pairs |= {
        name.rpartition(".")[2]: (read.names[name], was) for name, was in written.names.items() if name in read.names
    }
    return [f"{name} at {conflict}" for name, (new, old) in pairs.items() if (conflict := _conflict_text(new, old))]


def _conflict_text(reader: Schema, writer: Schema) -> str:
    result = ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)  # type: ignore[no-untyped-call]
    if result.compatibility is SchemaCompatibilityType.compatible:
        return ""
    places = sorted(result.locations - {"/"}) or ["/"]
    kinds = sorted({kind.value.replace("_", " ") for kind in result.incompatibilities})
    return f"{', '.join(places)}: {', '.join(kinds)} ({'; '.join(sorted(result.messages))})"


def _is_same_schema(text: str, exported: str) -> bool:
    # Words for people may be bettered in Python at any time: they are not worth a new id in every record.
    return bool(_without_docs(json.loads(text)) == _without_docs(json.loads(exported)))


def _without_docs(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_docs(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _without_docs(value) for key, value in schema.items() if not (key == "doc" and "type" in schema)}
    return schema


if __name__ == "__main__":  # make schemas
    if sys.argv[1:] == ["--check"]:
        sys.exit("\n".join(check_schemas()) or 0)
    if sys.argv[1:]:
        sys.exit("only --check is an option")
    try:
        added = export_schemas()
    except ConflictError as error:
        sys.exit(str(error))
    lines = [f"exported {line.subject} version {line.version} under id {line.id}\n" for line in added]
    sys.stdout.write("".join(lines) or "nothing changed\n")
