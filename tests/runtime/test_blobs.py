"""The blob store: what is put is there and nobody else's, what is altered is said so, an outage is waited for."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import FunctionType
from typing import Any, cast

import pytest

from refold import App
from refold.core.errors import BlobError, MalformedError, UnreachableError, UsageError
from refold.core.events import Failure
from refold.core.ids import CallId, RunId
from refold.core.messages import EarlierCall, ToolRequest
from refold.core.wire.blobs import INLINE_BYTES, folder_of, is_large, is_pointer, parse_pointer, pointer_of, stands_for
from refold.engine.adapters.blobs.store import ObjectBlobs
from refold.engine.adapters.tools.toolbox import Toolbox
from refold.engine.ports.effects import BlobLoaded, BlobSaved, LoadBlob, SaveBlob, StartTool, StopTool, ToolEnded
from refold.engine.runtime import blobs as asking
from refold.engine.runtime.blobs import BlobBackend
from refold.sdk.tool import EarlierCalls, ToolDef
from tests.waiting import eventually

Told = SimpleQueue[BlobLoaded | BlobSaved | BaseException]

RUN, OTHER = RunId("r-1"), RunId("R-1")
TEXT = '"' + "ö" * 50_000 + '"'

app = App("blobs")


@app.tool(effect="keyed")
async def large(*, idempotency_key: str) -> str:
    """A text that does not belong into a log."""
    return "ö" * 50_000


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectBlobs:
    return ObjectBlobs(f"file://{tmp_path}/blobs" if request.param == "file" else "memory:///", most=1 << 20)


def path_of(tmp_path: Path, run: RunId, pointer: str) -> Path:
    return tmp_path / "blobs" / folder_of(run) / parse_pointer(pointer).digest


class Sick:
    """A blob store that does not answer the first times."""

    def __init__(self, times: int) -> None:
        self.times, self.texts = times, dict[str, str]()

    def put(self, run: RunId, text: str) -> str:
        self._ask()
        pointer = pointer_of(text.encode())
        self.texts[pointer] = text
        return pointer

    def get(self, run: RunId, pointer: str) -> str:
        self._ask()
        if pointer not in self.texts:
            raise BlobError("it is gone", code="blob_missing")
        return self.texts[pointer]

    def erase(self, run: RunId) -> int:
        return 0

    def _ask(self) -> None:
        self.times -= 1
        if self.times >= 0:
            raise UnreachableError("nobody is there")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "FIRST_PAUSE_S", 0.001)


def test_a_value_is_there_for_its_run_and_for_no_other(store: ObjectBlobs) -> None:
    pointer = store.put(RUN, TEXT)

    assert store.get(RUN, pointer) == TEXT
    for of_other_pool in (OTHER, RunId("r-1.1"), RunId("r")):
        with pytest.raises(BlobError) as raised:
            store.get(of_other_pool, pointer)
        assert raised.value.fields["code"] == "blob_missing"


def test_erasing_a_run_erases_its_values_and_nobody_elses(store: ObjectBlobs) -> None:
    mine, theirs = [store.put(RUN, TEXT + str(n)) for n in range(3)], store.put(OTHER, TEXT)

    assert store.erase(RUN) == 3
    assert store.erase(RUN) == 0
    assert store.get(OTHER, theirs) == TEXT
    for pointer in mine:
        with pytest.raises(BlobError):
            store.get(RUN, pointer)


@pytest.mark.parametrize(
    "pointer",
    ["blob:", "blob:../../x:3", f"blob:{'A' * 64}:3", f"blob:{'a' * 64}:0", f"blob:{'a' * 64}:-1", f"blob:{'a' * 64}"],
)
def test_what_stands_for_no_value_is_missing(store: ObjectBlobs, pointer: str) -> None:
    with pytest.raises(MalformedError):
        parse_pointer(pointer)
    with pytest.raises(BlobError) as raised:
        store.get(RUN, pointer)

    assert raised.value.fields["code"] == "blob_missing"


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data + b" ", lambda data: b"X" + data[1:]])
def test_a_file_that_was_altered_is_not_handed_out_and_is_mended_by_writing_it_again(
    tmp_path: Path, spoil: object
) -> None:
    store = ObjectBlobs(f"file://{tmp_path}/blobs", most=1 << 20)
    pointer = store.put(RUN, TEXT)
    path = path_of(tmp_path, RUN, pointer)
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]

    with pytest.raises(BlobError) as raised:
        store.get(RUN, pointer)

    assert raised.value.fields["code"] == "blob_altered"
    store.put(RUN, TEXT)
    assert store.get(RUN, pointer) == TEXT


def test_a_value_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    pointer = ObjectBlobs(f"file://{tmp_path}/blobs", most=1 << 20).put(RUN, TEXT)

    with pytest.raises(BlobError) as raised:
        ObjectBlobs(f"file://{tmp_path}/blobs", most=1_000).get(RUN, pointer)

    assert raised.value.fields["code"] == "too_large"


def test_a_folder_is_its_owners_alone(tmp_path: Path) -> None:
    path = path_of(tmp_path, RUN, ObjectBlobs(f"file://{tmp_path}/blobs", most=1 << 20).put(RUN, TEXT))

    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent, path.parent.parent, tmp_path / "blobs")]

    assert modes == [0o600, 0o700, 0o700, 0o700]


def test_a_store_that_cannot_be_reached_is_no_missing_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ENDPOINT": "http://127.0.0.1:9", "ALLOW_HTTP": "true", "REGION": "x"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    store = ObjectBlobs("s3://bucket/path", most=1 << 20)

    for ask in (lambda: store.put(RUN, TEXT), lambda: store.get(RUN, pointer_of(b"x")), lambda: store.erase(RUN)):
        with pytest.raises(UnreachableError):
            ask()


def test_a_folder_that_is_away_has_lost_nothing(tmp_path: Path) -> None:
    store = ObjectBlobs(f"file://{tmp_path}/blobs", most=1 << 20)
    pointer = store.put(RUN, TEXT)

    (tmp_path / "blobs").rename(tmp_path / "away")
    with pytest.raises(UnreachableError):
        store.get(RUN, pointer)
    (tmp_path / "away").rename(tmp_path / "blobs")

    assert store.get(RUN, pointer) == TEXT


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(UsageError):
        ObjectBlobs("nonsense://x", most=1)


@pytest.mark.parametrize("scheme", ["https", "nonsense"])
def test_no_message_tells_what_is_secret_in_an_address(scheme: str) -> None:
    with pytest.raises((UnreachableError, UsageError)) as raised:
        ObjectBlobs(f"{scheme}://ann:hidden-1@127.0.0.1:9/x?sig=hidden-2", most=1).get(RUN, pointer_of(b"x"))

    assert "127.0.0.1:9/x" in str(raised.value)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("length", [INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1])
def test_large_is_counted_in_bytes(length: int) -> None:
    assert is_large("x" * length) == (length > INLINE_BYTES)
    assert is_large("ö" * (length // 2) + "x" * (length % 2)) == (length > INLINE_BYTES)


def test_what_stands_for_a_text_is_no_json_and_agrees_with_that_text_alone() -> None:
    pointer = pointer_of(TEXT.encode())

    assert is_pointer(pointer)
    assert not any(map(is_pointer, ('"blob:"', "{}", "null", "1", "")))
    assert stands_for(pointer, TEXT)
    assert stands_for(TEXT, TEXT)
    assert not stands_for(pointer, TEXT + " ")


@pytest.fixture
def told() -> Told:
    return SimpleQueue()


def answered(desk: BlobBackend, told: Told) -> BlobLoaded | BlobSaved | BaseException:
    """The next answer; the desk is told of the time, as its host does."""

    def came() -> bool:
        desk.again()
        return not told.empty()

    eventually(came)
    return told.get()


def test_an_outage_is_waited_for(told: Told) -> None:
    sick = Sick(3)
    desk = BlobBackend(sick, told.put)

    desk.take(SaveBlob(1, RUN, TEXT))
    assert answered(desk, told) == BlobSaved(1)
    sick.times = 2
    desk.take(LoadBlob(2, RUN, pointer_of(TEXT.encode())))
    assert answered(desk, told) == BlobLoaded(2, TEXT)
    desk.take(LoadBlob(3, RUN, pointer_of(b"else")))

    assert answered(desk, told) == BlobLoaded(3, Failure("blob_missing", "it is gone"))
    desk.close()


class Keeping(Sick):
    """A store that does not say whether it has some values, as one does that may not be listed."""

    def get(self, run: RunId, pointer: str) -> str:
        if run != RUN:
            raise UnreachableError("forbidden")
        return super().get(run, pointer)


def test_values_that_a_store_keeps_back_for_ever_hold_up_no_others(told: Told) -> None:
    store = Keeping(0)
    pointer = store.put(RUN, TEXT)
    desk = BlobBackend(store, told.put)

    for number in range(1, 2 * asking.BACKENDS + 1):
        desk.take(LoadBlob(number, OTHER, pointer))
    desk.take(LoadBlob(99, RUN, pointer))

    assert answered(desk, told) == BlobLoaded(99, TEXT)
    desk.close()


def test_without_a_store_every_pointer_is_missing(told: Told) -> None:
    desk = BlobBackend(None, told.put)

    desk.take(LoadBlob(1, RUN, pointer_of(b"x")))

    answer = told.get(timeout=60)
    assert isinstance(answer, BlobLoaded)
    assert isinstance(answer.value, Failure)
    assert answer.value.code == "blob_missing"
    desk.close()


def test_what_others_have_kept_waits_for_a_store_and_is_not_missing(told: Told) -> None:
    desk = BlobBackend(None, told.put)
    desk.take(LoadBlob(1, RUN, pointer_of(b"x"), kept=True))
    desk.take(LoadBlob(2, RUN, pointer_of(b"x")))

    answer = told.get(timeout=60)

    assert isinstance(answer, BlobLoaded)
    assert answer.number == 2
    eventually(lambda: desk._later)
    assert told.empty()
    desk.close()


def _order(number: int) -> StartTool:
    request = ToolRequest(CallId("r-1/3"), RUN, 1, 1, 0, "large", "{}", "k", "keyed", 1_000)
    return StartTool(number, request, probe=False)


def test_a_large_result_is_told_when_the_store_has_it_and_no_stop_loses_it() -> None:
    ended: SimpleQueue[ToolEnded] = SimpleQueue()
    sick = Sick(1 << 30)
    box = Toolbox(app, ended.put, threads=2, max_result=1 << 20, blobs=sick)

    box.start([_order(1)])
    eventually(lambda: sick.times < (1 << 30) - 3)
    box.stop(StopTool(1, "timeout"))
    assert ended.empty()
    sick.times = 0

    told = ended.get(timeout=60)
    assert (told.status, told.result) == ("completed", pointer_of(TEXT.encode()))
    assert sick.texts[told.result] == TEXT
    box.close()


def test_a_result_that_is_too_large_for_the_store_too_says_so() -> None:
    ended: SimpleQueue[ToolEnded] = SimpleQueue()
    box = Toolbox(app, ended.put, threads=2, max_result=1_000)

    box.start([_order(1)])

    told = ended.get(timeout=60)
    assert (told.status, told.code) == ("broken", "too_large")
    assert "REFOLD_BLOBS__URL" in told.message
    box.close()


def test_a_call_that_builds_on_a_large_result_is_handed_it() -> None:
    ended: SimpleQueue[ToolEnded] = SimpleQueue()
    store, seen = Sick(0), list[object]()
    pointer = store.put(RUN, TEXT)
    building = App("building")
    building.add_tool(Building(seen))
    box = Toolbox(building, ended.put, threads=2, max_result=1 << 20, blobs=store)
    earlier = [EarlierCall(1, '{"n":1}', pointer), EarlierCall(2, "{}", "7")]
    order = replace(_order(1).request, tool="building", earlier=earlier)

    box.start([StartTool(1, order, probe=False)])

    assert ended.get(timeout=60).status == "completed"
    assert seen == [{1: ('{"n":1}', TEXT), 2: ("{}", "7")}]
    box.close()


class Building(ToolDef):
    """A tool that notes on what its calls build."""

    def __init__(self, seen: list[object]) -> None:
        def building() -> None: ...

        super().__init__(cast(FunctionType, building), effect="pure")
        self._seen = seen

    def run_on(self, earlier: EarlierCalls, args_json: str, *, idempotency_key: str) -> Any:
        return lambda: self._seen.append(earlier())
