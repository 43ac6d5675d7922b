"""A value arrives as it was sent, or is refused by name: each type has one wire form."""

from __future__ import annotations

import dataclasses
import enum
import math
import os
import subprocess
import sys
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pydantic as p
import pytest
from typing_extensions import TypedDict

from refold import App, CallFailed, Context, NonDeterminismError, UsageError
from refold.core.events import CallProposed, RunStarted
from refold.core.run.intents import Call
from refold.sdk.json_codec import JsonCodec
from refold.testing import run
from tests.sdk.attempts import tool

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    tags: frozenset[str] = frozenset()


class Labels(TypedDict, total=False):
    names: set[str]


@dataclasses.dataclass
class Base:
    tenant: str


@dataclasses.dataclass
class Admin(Base):
    may_delete: bool = False


@dataclasses.dataclass
class Login:
    user: str
    password: dataclasses.InitVar[str] = ""

    def __post_init__(self, password: str) -> None:
        self.secret = password[::-1]


class Receipt(p.BaseModel):
    document_id: str = p.Field(serialization_alias="documentId")


class Line(p.BaseModel):
    model_config = p.ConfigDict(extra="forbid")
    net: int

    @p.computed_field
    def gross(self) -> int:
        return self.net * 2


class Patch(p.BaseModel):
    name: str | None = None
    note: str | None = None


class Order(p.BaseModel):
    id: uuid.UUID = p.Field(default_factory=uuid.uuid4)
    sku: str
    note: str | None = None


class Dog(p.BaseModel):
    kind: Literal["dog"] = "dog"
    toys: set[str] = set()


class Cat(p.BaseModel):
    kind: Literal["cat"] = "cat"


class Box(p.BaseModel, Generic[T]):
    item: T
    more: Box[T] | None = None


class Open(p.BaseModel):
    model_config = p.ConfigDict(extra="allow")
    x: float = 1.0


class Hidden(p.BaseModel):
    shown: str
    hidden: str = p.Field("none", exclude=True)
    _note: str = p.PrivateAttr("")


class Names(p.RootModel[frozenset[str]]):
    pass


class Read(p.BaseModel):
    name: str = p.Field(validation_alias=p.AliasChoices("first", "second"))


def back(kind: Any, value: Any) -> Any:
    """The value as a tool has it, by the text of an argument."""
    codec = JsonCodec(kind, "it", sparse=True)
    return codec.load(codec.dump(value))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (set[str], {"b", "a", "c"}),
        (frozenset[tuple[int, str]], frozenset({(2, "b"), (1, "c")})),
        (dict[str, set[int]], {"x": {3, 1}}),
        (Labels, {"names": {"b", "a"}}),
        (Point, Point(1, frozenset("ab"))),
        (Names, Names(frozenset("xyz"))),
        (Admin, Admin("acme", may_delete=True)),
        (Base | Admin, Admin("acme", may_delete=True)),
        (Receipt, Receipt(document_id="d")),
        (Line, Line(net=1)),
        (Read, Read(first="ada")),
        (Annotated[Dog | Cat, p.Field(discriminator="kind")], Dog(toys={"ball", "bone"})),
        (Box[set[str]], Box[set[str]](item={"b", "a"}, more=Box[set[str]](item={"c"}))),
        (Open, Open(x=math.inf, y=1, z=["a"])),
        (dict[int, str], {1: "a", 20: "b"}),
        (dict[uuid.UUID, int], {uuid.UUID(int=1): 1}),
        (dict[Colour, int], {Colour.RED: 1}),
        (dict[date, int], {date(2026, 1, 2): 1}),
        (Colour, Colour.RED),
        (Level, Level.HIGH),
        (Literal["a", 1, None], 1),
        (bytes, b"hi"),
        (bytes, b"\xff\xfe"),
        (bytes, b"data:;base64,aGk="),
        (list[bytes], [b"", b"\x80"]),
        (float, -math.inf),
        (float | None, math.inf),
        (list[float], [1.0, 2.0**60, 1e300, -math.inf]),
        (int, 2**64 + 1),
        (int, -(10**4_000)),
        (Any, {"id": 616581622363398142, "more": [2**70, 0.5]}),
        (Any, (1, "a", None)),
        (Decimal, Decimal("1.10")),
        (Dog | Cat, Cat()),
        (Mapping[str, int], {"a": 1}),
        (datetime, datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=2)))),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
        (timedelta, timedelta(days=1, microseconds=1)),
        (uuid.UUID, uuid.UUID(int=7)),
        (Path, Path("a/b")),
        (deque[int], deque([1, 2])),
        (Sequence[str], ["a", "b"]),
        (Hidden, Hidden(shown="a")),
        (p.AnyUrl, p.AnyUrl("https://example.org/a")),
    ],
)
def test_a_value_of_a_declared_type_arrives_as_it_was_sent(kind: Any, value: Any) -> None:
    read = back(kind, value)

    assert read == value if kind is not Any else list(read) == list(value)
    assert type(read) is type(value) or kind is Any


def test_nan_arrives_where_the_type_is_a_float_and_nowhere_else() -> None:
    assert math.isnan(back(float, math.nan))
    assert math.isnan(back(Open, Open(x=math.nan)).x)
    for kind in (Any, dict[str, Any], float | str):
        with pytest.raises(UsageError):
            back(kind, {"x": math.nan} if kind == dict[str, Any] else math.nan)


def test_a_set_is_written_in_one_order_whatever_the_order_of_the_process() -> None:
    program = (
        "from refold.sdk.json_codec import JsonCodec\n"
        "from tests.sdk.test_values import Dog, Point\n"
        "names = {'red', 'green', 'blue', 'white', 'black'}\n"
        "print(JsonCodec(dict[str, set[str]], 'x').dump({'a': names}), JsonCodec(Dog, 'x').dump(Dog(toys=names)))\n"
        "print(JsonCodec(Point, 'x').dump(Point(1, frozenset(names))))\n"
    )
    told = set()
    for seed in ("1", "2", "3"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        told.add(subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True).stdout)

    assert len(told) == 1


@pytest.mark.parametrize(
    ("kind", "value", "wrong"),
    [
        (Any, {"tags": {"red", "green"}}, "it: tags: a set has no order"),
        (list[str], {"red", "green"}, "it: a set has no order"),
        (dict[str, list[str]], {"a": frozenset("ab")}, "it: a: a set has no order"),
        (tuple[str, ...], {"red", "green"}, "it: a set has no order"),
        (deque[str], {"red", "green"}, "it: a set has no order"),
        (Iterable[str], {"red", "green"}, "it: a set has no order"),
        (Any, {"dog": Dog(toys={"a", "b"})}, "it: dog.toys: a set has no order"),
        (Any, {1: 10, "1": 5}, "it: the key 1 is no text"),
        (dict[Any, int], {None: 10}, "it: None"),
        (dict[int | str, int], {1: 10, "1": 5}, "it: 1"),
        (Any, {"a": [{(1, 2): 3}]}, r"it: a.0: the key \(1, 2\) is no text"),
        (Base, Admin("acme", may_delete=True), "it: a Admin would arrive as a Base"),
        (p.SerializeAsAny[Base], Admin("acme", may_delete=True), "it: may_delete"),
        (dict[str, Base], {"x": Admin("acme")}, "it: x: a Admin would arrive as a Base"),
        (Login, Login("ada", password="pw"), "it: secret: it would arrive as another value"),
        (Hidden, Hidden(shown="a", hidden="b"), "it: hidden: it is not written"),
        (Annotated[int, p.AfterValidator(lambda n: n + 1)], 100, "it: it would arrive as another value"),
        (Any, object(), "Unable to serialize unknown type"),
        (list[int], [10**4_300], "more than 4,300 digits"),
    ],
)
def test_a_value_that_would_arrive_as_another_is_refused_with_its_place(kind: Any, value: Any, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        back(kind, value)


def test_a_field_that_was_left_to_the_class_arrives() -> None:
    codec = JsonCodec(dataclasses.make_dataclass("Plain", [("seconds", float, 0)], init=False), "plain")
    value = codec.load("{}")
    vars(value).clear()

    assert codec.write(value) == '{"seconds":0}'


def test_a_private_attribute_that_is_lost_is_named() -> None:
    hidden = Hidden(shown="a")
    hidden._note = "b"

    with pytest.raises(UsageError, match="it: _note"):
        back(Hidden, hidden)


class Required(p.BaseModel):
    secret: str = p.Field(exclude=True)


class Deep(p.BaseModel):
    name: str = p.Field(validation_alias=p.AliasPath("names", 0))


@dataclasses.dataclass
class Handed:
    password: dataclasses.InitVar[str]


class Pair(enum.Enum):
    ONE = (1, 2)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (p.SecretStr, "x: a secret is masked.*refold.Secret"),
        (p.Secret[int], "x: a secret is masked"),
        (dict[str, list[p.SecretBytes | None]], "x: a secret is masked"),
        (Box[p.SecretStr], "item: a secret is masked"),
        (dict[tuple[int, int], int], "x: keys of a dict"),
        (dict[frozenset[int], int], "x: keys of a dict"),
        (Required, "x.secret: a field that is excluded"),
        (Deep, "x.name: it is read from a place inside"),
        (Handed, "x.password: an InitVar"),
        (Pair, r"x: <Pair.ONE: \(1, 2\)> cannot be read back"),
        (Literal[b"x"], "x: b'x' cannot be read back"),
    ],
)
def test_a_type_that_cannot_come_back_is_refused_where_it_is_declared(kind: Any, wrong: str) -> None:
    def takes(x: Any) -> None: ...

    def gives() -> None: ...

    takes.__annotations__["x"] = kind
    gives.__annotations__["return"] = kind
    with pytest.raises(UsageError, match=wrong):
        tool()(takes)
    with pytest.raises(UsageError, match=wrong.removeprefix("x").removeprefix(": ").removeprefix(".")):
        tool()(gives)


def test_fields_that_nobody_has_set_stay_unset_and_drawn_ones_are_what_they_were() -> None:
    order = Order(sku="egg")
    read = back(Order, order)

    assert back(Patch, Patch(name="n")).model_dump(exclude_unset=True) == {"name": "n"}
    assert (read, read.model_fields_set) == (order, {"id", "sku"})
    assert "note" not in JsonCodec(Order, "it", sparse=True).dump(order)


def test_a_default_that_was_changed_in_its_place_is_written() -> None:
    class Bag(p.BaseModel):
        items: list[str] = []

    bag = Bag()
    bag.items.append("egg")

    assert back(Bag, bag).items == ["egg"]


def test_a_history_with_an_older_text_of_the_same_arguments_agrees() -> None:
    @tool()
    def write(patch: Patch, line: Line) -> None: ...

    def asked(text: str) -> Call:
        return write.call(text)

    new = asked(write.canonical_args(Patch(name="n"), Line(net=1)))
    older = '{"line":{"gross":2,"net":1},"patch":{"name":"n","note":null}}'
    recorded = CallProposed(1, "write", older, "k", "default", "once", 1, write.policy)

    assert new.args == '{"line":{"net":1},"patch":{"name":"n"}}'
    assert not new.agrees(recorded)  # a line with an extra field was never read
    recorded = dataclasses.replace(recorded, args='{"line":{"net":1},"patch":{"name":"n","note":null}}')
    assert new.agrees(recorded)
    assert not new.agrees(dataclasses.replace(recorded, args='{"line":{"net":2},"patch":{"name":"n"}}'))


def test_a_default_is_checked_where_it_is_declared_and_a_field_is_understood() -> None:
    @tool()
    def take(a: int = p.Field(default=7, ge=1), b: Annotated[int, p.Field(default=8)] = 8) -> None: ...

    def wrong(a: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert take.canonical_args() == '{"a":7,"b":8}'
    with pytest.raises(UsageError, match="a: Input should be greater than or equal to 1"):
        take.canonical_args(0)
    with pytest.raises(UsageError, match="parameter a has a default that does not fit"):
        tool()(wrong)


def test_an_iterable_is_a_list_that_can_be_read_twice() -> None:
    @tool()
    def book(amounts: Iterable[int]) -> str:
        return f"{len(list(amounts))} {sum(amounts)}"

    assert book.arguments.load(book.canonical_args(n for n in (10, 20))) == {"amounts": [10, 20]}
    with pytest.raises(UsageError, match=r"amounts.1: Input should be a valid integer"):
        book.canonical_args([1, "x"])


def test_what_reading_an_input_draws_is_drawn_once_and_in_the_log() -> None:
    app = App("orders")

    @app.tool(effect="once")
    def ship(id: str) -> str:  # noqa: A002
        return id

    @app.agent
    async def take(ctx: Context, order: Order) -> str:
        return await ctx.call(ship, str(order.id))

    @app.agent
    async def gives(ctx: Context) -> Any:
        return await ctx.run(take, Order(sku="egg"))

    ended = run(app, "take", sku="egg")
    started = next(event for event in ended.events if isinstance(event, RunStarted))
    ended.check()

    assert started.input == f'{{"id":"{ended.value}","note":null,"sku":"egg"}}'
    child = run(app, "gives")
    child.children[0].check()
    assert child.value == child.children[0].value


def test_an_input_that_is_another_each_time_is_refused_when_the_run_begins() -> None:
    app = App("stamps")

    @app.agent
    async def take(ctx: Context, order: Stamped) -> int:
        return order.at

    ended = run(app, "take", at=1)
    assert ended.status == "failed"
    assert ended.failure is not None
    assert "it would arrive as another value" in ended.failure.message


def test_a_result_that_is_not_read_back_is_known_before_it_counts_and_people_see_it() -> None:
    app = App("pay")

    @app.tool(effect="once")
    def pay() -> Base:
        return Admin("acme", may_delete=True)

    @app.agent
    async def agent(ctx: Context) -> Any:
        try:
            return await ctx.call(pay)
        except CallFailed as failed:
            return [failed.fields["code"], failed.fields["message"]]

    code, message = run(app, "agent").value
    assert code == "bad_result"
    assert "a Admin would arrive as a Base" in message
    assert "the tool returned Admin(tenant='acme', may_delete=True)" in message


def test_a_call_that_is_too_large_is_that_in_a_test_too() -> None:
    app = App("large")

    @app.tool(effect="pure")
    def put(text: str) -> str:
        return text

    @app.agent
    async def agent(ctx: Context) -> str:
        return await ctx.call(put, "x" * (1 << 20))

    ended = run(app, "agent")
    assert ended.failure is not None
    assert (ended.failure.code, "1,048,587 bytes" in ended.failure.message) == ("too_large", True)


class Stamped(p.BaseModel):
    at: int = 0

    @p.field_validator("at")
    @classmethod
    def stamp(cls, at: int) -> int:
        return int(uuid.uuid4())


SHOP = App("shop")
TAGS = ["red", "green", "blue", "white", "black", "brown", "grey", "pink"]  # so many that two orders hardly agree


@SHOP.tool(effect="pure")
def search(tag: str) -> str:
    return tag


@SHOP.agent
async def by_set(ctx: Context) -> None:
    """Its order is that of its process."""
    for tag in set(TAGS):
        await ctx.call(search, tag)


@SHOP.agent
async def in_order(ctx: Context) -> None:
    """Its order is the same everywhere."""
    for tag in sorted(set(TAGS)):
        await ctx.call(search, tag)


def test_a_run_that_depends_on_the_hash_seed_is_found_in_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NonDeterminismError, match="in a process with another hash seed"):
        run(SHOP, "by_set")
    assert run(SHOP, "in_order").status == "completed"
    monkeypatch.setattr(f"{__name__}.TAGS", ["one", "two"])  # which the other process has not
    assert run(SHOP, "in_order").status == "completed"
