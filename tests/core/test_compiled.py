"""The decoder in C takes just what the Python one takes, as the same value, and is never loaded for anything else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from refold.core.errors import MalformedError, UsageError
from refold.core.events import Entry
from refold.core.messages import RunRequest
from refold.core.wire import avro, codec, schemas
from refold.schemas import decoder
from refold.schemas.pyx import pyx_of
from tests.core.hostile import Bodies
from tests.core.test_avro_rules import request
from tests.golden.samples import recorded

ROOT = Path(__file__).parents[2]
COMPILER = str(sysconfig.get_config_var("LDSHARED") or "cc").split()[0]
HEADERS = Path(sysconfig.get_path("include"), "Python.h")
pytestmark = pytest.mark.skipif(
    not (shutil.which(COMPILER) and HEADERS.exists()), reason=f"no {COMPILER} or no {HEADERS}: nothing can be compiled"
)
ALL = {number: schema for number, (_, schema) in schemas.registered()[0].items()}
BULK = {codec.SUBJECTS[cls]: cls for cls in decoder.BULK}
NUMBERS = [number for number, (subject, _) in schemas.registered()[0].items() if subject in BULK]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the decoder, as `refold schemas compile` makes it."""
    folder = tmp_path_factory.mktemp("decoder")
    decoder.build_decoder(folder)
    return folder


@pytest.fixture(scope="module")
def readers(folder: Path) -> codec.Compiled:
    return decoder.load(folder)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A decoder to spoil."""
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave this process with what it had."""
    yield
    decoder.choose("python")


def outcome(read: Callable[..., Any], *given: Any) -> str:
    """The value that was read, types and all, or the refusal with its text."""
    try:
        return repr(read(*given))
    except Exception as error:  # noqa: BLE001 - any other error is an outcome that is compared
        return f"{type(error).__name__}: {error}"


def differences(read: codec.ReadBody, schema: Any, *, many: int, seed: int) -> tuple[list[bytes], Counter[str]]:
    """Bodies of which C makes something else than Python, and how many were taken and refused."""
    python, bodies, found, counts = avro.reader(schema, codec.CLASSES), Bodies(schema, seed), [], Counter[str]()
    for _ in range(many):
        value = b"\0\0\0\0\1" + bodies.body()
        expected = outcome(python, value, 5)
        refused = expected.startswith("MalformedError: ")
        counts["refused" if refused else "taken"] += 1
        if outcome(read, value, 5) != ("None" if refused else expected):
            found.append(value)
    return found, counts


@pytest.mark.parametrize("number", NUMBERS)
def test_c_takes_what_python_takes(number: int, readers: codec.Compiled) -> None:
    found, counts = differences(readers[number], ALL[number], many=10_000, seed=number)

    assert found == []
    assert min(counts["taken"], counts["refused"]) > 2_000, counts


@pytest.mark.long
@pytest.mark.parametrize("number", NUMBERS)
def test_c_takes_what_python_takes_of_a_million(number: int, readers: codec.Compiled) -> None:
    assert differences(readers[number], ALL[number], many=1_000_000, seed=1_000 + number)[0] == []


@pytest.mark.long
def test_c_of_any_schema_takes_what_python_takes(tmp_path: Path) -> None:
    """Nothing in the generator is for the three that are read in bulk."""
    made = decoder.compiled(pyx_of(ALL.items(), codec.CLASSES), tmp_path, ["-O1"])
    read = decoder.readers(made, codec.CLASSES)

    assert {n: differences(read[n], ALL[n], many=50_000, seed=n)[0] for n in ALL} == {n: [] for n in ALL}


def test_what_every_version_wrote_is_read_by_c(readers: codec.Compiled) -> None:
    kinds = Counter(value[:5] for value in recorded().values() if int.from_bytes(value[1:5]) in readers)
    assert len(kinds) == len(readers)

    for name, value in recorded().items():
        number = int.from_bytes(value[1:5])
        if number in readers:
            assert repr(readers[number](value, 5)) == repr(avro.reader(ALL[number], codec.CLASSES)(value, 5)), name


def test_a_refusal_by_the_codec_is_the_one_of_python(folder: Path) -> None:
    bodies = Bodies(ALL[1], 7)
    values = [b"\0\0\0\0\1" + bodies.body() for _ in range(2_000)]
    python = [outcome(codec.decode, Entry, value) for value in values]

    assert decoder.choose("compiled", folder).name == "compiled"

    assert [outcome(codec.decode, Entry, value) for value in values] == python
    assert sum(text.startswith("MalformedError: ") for text in python) > 200
    with pytest.raises(MalformedError, match="64 bits"):  # another schema, which Python alone reads
        codec.decode(RunRequest, request(not_before=b"\xff" * 300))


@pytest.mark.parametrize("data", [bytearray(b"\0" * 20), memoryview(b"\0" * 20), "text", None, 7])
def test_what_is_no_bytes_is_left_to_python(data: Any, readers: codec.Compiled) -> None:
    assert all(read(data, 5) is None for read in readers.values())


@pytest.mark.parametrize("start", [-1, 21, 2**62, -(2**63)])
def test_a_start_outside_the_bytes_is_left_to_python(start: int, readers: codec.Compiled) -> None:
    assert all(read(b"\0" * 20, start) is None for read in readers.values())


@dataclass(frozen=True, slots=True)
class Inner:
    flag: bool


@dataclass(frozen=True, slots=True)
class Outer:
    number: int
    inner: Inner | None
    later: str = "new"
    many: list[int] = field(default_factory=lambda: [1])


CLASSES = {"refold.Outer": Outer, "refold.Inner": Inner}
INNER = {"type": "record", "name": "Inner", "namespace": "refold", "fields": [{"name": "flag", "type": "boolean"}]}


def outer(**kinds: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    return {"type": "record", "name": "Outer", "namespace": "refold", "fields": fields}


def test_older_versions_get_defaults_and_what_a_class_has_no_more_is_skipped(tmp_path: Path) -> None:
    old, other = outer(number="long", gone="string", inner=["null", INNER]), outer(inner=[INNER, "null"], number="long")
    made = decoder.compiled(pyx_of([(1, old), (2, other)], CLASSES), tmp_path)

    read = decoder.readers(made, CLASSES)

    for number, schema in ((1, old), (2, other)):
        python, bodies = avro.reader(schema, CLASSES), Bodies(schema, number)
        for _ in range(5_000):
            body = bodies.body()
            slow = outcome(python, body, 0)
            assert outcome(read[number], body, 0) == ("None" if slow.startswith("Malf") else slow)
    first, second = (read[1](b"\x02\x02x\x00", 0) for _ in range(2))
    assert first == Outer(1, None)
    assert first.many is not second.many


@pytest.mark.parametrize("kind", ["double", "refold.Outer", {"type": "map", "values": "long"}, {"type": "enum"}])
def test_a_schema_of_other_kinds_is_not_compiled(kind: Any) -> None:
    with pytest.raises(TypeError, match="not among the Avro types"):
        pyx_of([(1, outer(number=kind))], CLASSES)


def stamped(spoil: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """A change of the stamp."""

    def change(module: Path) -> object:
        stamp = module.with_suffix(".stamp")
        return stamp.write_bytes(spoil(stamp.read_bytes()))

    return change


def replaced(module: Path, body: bytes | bytearray) -> None:
    """Another file of that name: what this process has loaded stays as it is."""
    module.unlink()
    module.write_bytes(body)


def flipped(module: Path) -> None:
    body = bytearray(module.read_bytes())
    body[len(body) // 2] ^= 1
    replaced(module, body)


def forged(module: Path) -> None:
    """No module, with a stamp that fits."""
    replaced(module, b"\x7fELF, or so it says")
    stamped(lambda _: decoder._stamp(module.read_bytes()))(module)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (flipped, "was changed"),
        (lambda module: replaced(module, b""), "was changed"),
        (stamped(lambda stamp: b"0" + stamp[1:] if stamp[:1] != b"0" else b"1" + stamp[1:]), "another Refold"),
        (stamped(lambda stamp: stamp[:65] + stamp[:64] + stamp[129:]), "or Python"),
        (stamped(lambda stamp: stamp[:-1]), "was changed"),
        (stamped(lambda stamp: stamp + b"\n"), "was changed"),
        (stamped(lambda stamp: b""), "was changed"),
        (lambda module: module.with_suffix(".stamp").unlink(), "was changed"),
        (forged, "cannot be loaded"),
    ],
)
def test_a_decoder_that_was_changed_or_is_for_something_else_is_not_loaded(
    spoil: Callable[[Path], object], why: str, copied: Path
) -> None:
    spoil(decoder.module_path(copied))

    found = decoder.choose("auto", copied)

    assert (found.name, found.refused) == ("python", True)
    assert why in found.why
    assert "`refold schemas compile` makes it again" in found.why
    assert codec._COMPILED == {}
    with pytest.raises(UsageError, match="REFOLD_DECODER=compiled"):
        decoder.choose("compiled", copied)


def test_c_decodes_where_it_is_compiled_and_python_where_that_is_wanted(folder: Path, tmp_path: Path) -> None:
    assert decoder.choose("auto", folder) == ("compiled", str(decoder.module_path(folder)), False)
    assert list(codec._COMPILED) == NUMBERS
    assert decoder.choose("python", folder) == ("python", "REFOLD_DECODER=python", False)
    assert codec._COMPILED == {}
    assert decoder.choose("auto", tmp_path)[::2] == ("python", False)
    with pytest.raises(UsageError, match="none is compiled"):
        decoder.choose("compiled", tmp_path)


def test_without_a_compiler_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LDSHARED", "no-such-compiler -shared")

    with pytest.raises(UsageError, match="apt-get install gcc"):
        decoder.build_decoder(tmp_path)
    assert list(tmp_path.iterdir()) == []


PLANTED = {
    "any byte is a boolean": ("if n > 1:\n        refuse()\n    return n == 1", "return n == 1"),
    "a boolean is a number": ("cdef int n = byte(p)\n    if n > 1", "cdef uint64_t n = number(p)\n    if n > 1"),
    "a text may be no UTF-8": ("(start, size, NULL)", "(start, size, 'replace')"),
    "the end is anywhere": ("found if p.at == p.end else None", "found"),
    "a negative count is none": ("return (n >> 1) + 1", "return n >> 1"),
    "a block has no size": ("    number(p)\n    return", "    return"),
    "a key twice is one": ("if key in found", "if False"),
    "a number has any tail": ("if shift == 63 and more > 1", "if shift > 63"),
    "a number has no sign": ("(n >> 1) ^ (0 - (n & 1))", "n >> 1"),
    "a negative length is one": ("n & 1 or n >> 1 >", "n >> 1 >"),
    "a branch is any": ("    if n == 2:\n", "    if n >= 2:\n"),
    "one block is all": ("            left = count(p)\n", "            pass\n"),
}


@pytest.mark.long
@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_in_the_generated_code_is_found(bug: str, tmp_path: Path) -> None:
    right, wrong = PLANTED[bug]
    text = pyx_of([(7, ALL[7]), (2, ALL[2])], codec.CLASSES)
    assert right in text

    read = decoder.readers(decoder.compiled(text.replace(right, wrong), tmp_path, ["-O1"]), codec.CLASSES)

    assert any(differences(read[number], ALL[number], many=10_000, seed=number)[0] for number in (2, 7))


def sanitized(folder: str, many: int) -> None:
    """Compare every schema in this process."""
    read = decoder.readers(Path(folder, "_decoder.so"), codec.CLASSES)
    found = [number for number in ALL if differences(read[number], ALL[number], many=many, seed=number)[0]]
    assert found == []
    sys.stdout.write("as Python\n")


@pytest.mark.long
@pytest.mark.parametrize(
    "bug", ["", "    if p.at == p.end:\n        refuse()\n", "or n >> 1 > <uint64_t>(p.end - p.at)"]
)
def test_no_byte_outside_the_body_is_read(bug: str, tmp_path: Path) -> None:
    """Under the sanitizers of the compiler, which end the process at the first such byte and at undefined C."""
    library = subprocess.run([COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    if not Path(library.stdout.strip()).is_absolute():
        pytest.skip("this compiler has no sanitizers")
    flags = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    text = pyx_of(ALL.items(), codec.CLASSES)
    assert bug in text
    decoder.compiled(text.replace(bug, ""), tmp_path, flags)
    # Python's own allocator would hide where an object ends.
    watched = {"LD_PRELOAD": library.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    call = f"from tests.core.test_compiled import sanitized; sanitized({str(tmp_path)!r}, 3_000)"

    done = subprocess.run(
        [sys.executable, "-c", call], cwd=ROOT, env=os.environ | watched, capture_output=True, text=True, timeout=300
    )

    assert (done.stdout == "as Python\n") is not bool(bug), done.stderr[-2_000:]
    assert ("AddressSanitizer" in done.stderr) is bool(bug), done.stderr[-2_000:]
