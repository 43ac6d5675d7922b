"""Texts on which two parsers could disagree are refused the same way by every place that reads JSON from outside.

Each door has a text that it takes and a number in it, `SLOT`; each mangling makes that text one which some parser
takes and another refuses, or reads differently.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from refold.core.approval import decision
from refold.core.approval.catalog import UNREADABLE, Catalog
from refold.core.approval.decision import Cast, ToolFacts
from refold.core.approval.policy import Policy
from refold.core.approval.signature import ALGORITHM, SigningKey, sealed, verified
from refold.core.errors import MalformedError, RefoldError, UnauthorisedError, UsageError
from refold.core.events import Requirement
from refold.core.messages import ApprovalRequest, CatalogEntry, RunRequest, RunSignal, ToolRequest
from refold.core.wire import canonical, codec
from refold.core.wire.canonical import idempotency_key
from refold.sdk.app import App
from tests.core.histories import examples
from tests.roots import ROOT, TRUST

SLOT = '"slot":1'
NOW = 1_700_000_000_000
KEYS = {use: SigningKey(f"key-{use}", use, use.encode().ljust(32)) for use in ("decision", "vote")}


class Refused(Exception):  # noqa: N818 - what a door did, not what went wrong
    """A door has refused a text, in the way that it refuses texts."""


@dataclass(frozen=True)
class Door:
    """A place that reads JSON. `take` gives what was read, or raises `Refused`; `sample` is what it takes."""

    sample: str
    take: Callable[[bytes], Any]


def refusing(error: type[RefoldError], read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A reader that refuses with one kind of error."""

    def take(text: bytes) -> Any:
        try:
            return read(text)
        except error as found:
            if found.fields.get("reason", "malformed") != "malformed":
                raise
            raise Refused from None

    return take


def planted(message: Any, field: str, text: bytes) -> bytes:
    """The Avro value of a message, with bytes in a field that need not be UTF-8."""
    holder = "@" * len(text)
    value = codec.encode(type(message)(**{**{n: getattr(message, n) for n in message.__slots__}, field: holder}))
    assert value.count(holder.encode()) == 1 or not text
    return value.replace(holder.encode(), text)


def of_request(text: bytes) -> Any:
    value = b'{"run_id":"r","agent":"a","input":' + text + b"}"
    return json.loads(codec.decode_input(RunRequest, value, json_fields=("input",)).input)


def of_whole_request(text: bytes) -> Any:
    return codec.decode_input(RunRequest, text, json_fields=("input",)).not_before_ms


def of_avro_request(text: bytes) -> Any:
    value = planted(RunRequest("r", "a"), "input", text)
    return json.loads(codec.decode_input(RunRequest, value, json_fields=("input",)).input)


def of_signal(text: bytes) -> Any:
    value = b'{"run_id":"r","signal_id":"s","kind":"cancel","data":' + text + b"}"
    return json.loads(codec.decode_input(RunSignal, value, json_fields=("data",)).data)


def of_avro_signal(text: bytes) -> Any:
    value = planted(RunSignal("r", "s", "cancel"), "data", text)
    return json.loads(codec.decode_input(RunSignal, value, json_fields=("data",)).data)


def of_token(use: str) -> Callable[[bytes], Any]:
    """What is in a token whose signature is good, whatever it is around."""
    key = KEYS[use]
    header = canonical.dumps({"alg": ALGORITHM, "kid": key.kid, "typ": f"refold-{use}+jws"}).encode()

    def take(text: bytes) -> Any:
        signed = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in (header, text))
        signature = urlsafe_b64encode(Ed25519PrivateKey.from_private_bytes(key.seed).sign(signed)).rstrip(b"=")
        return verified(f"{signed.decode()}.{signature.decode()}", {key.kid: key.public()}, use=use)

    return take


def ordered(text: bytes) -> ToolRequest:
    """The order that an executor reads, with these bytes for its arguments."""
    order = ToolRequest("r/3", "r", 1, 1, 0, "pay", "", "", "once", 1, policy="p", at_ms=NOW)
    read = refusing(MalformedError, lambda value: codec.decode(ToolRequest, value))
    found: ToolRequest = read(planted(order, "args", text))
    return found


def of_order(text: bytes) -> Any:
    """The arguments of an order, with a decision for those very bytes, by somebody who reads nothing."""
    order = ordered(text)
    key = idempotency_key(environment="prod", run="r", step=1, tool="pay", args=order.args)
    asked = ApprovalRequest(
        approval_id="r/4", run_id="r", call_id="r/3", step=1, attempt=1, covers=1, agent="a", requester="", session="",
        environment="prod", tool="pay", version="1", schema="s", effect="once", args=order.args, key=key, policy="p",
        rule="", requirement=Requirement(["*"]), question="q", proposal="", asked_ms=NOW,
    )  # fmt: skip
    found = decision.build(asked, "approve", votes=(Cast("ann", "*", "", "approve", NOW),), issued_ms=NOW, nonce="")
    order, tool = replace(order, key=key), ToolFacts("pay", "1", "s", "once")
    if refused := decision.refusal(found, order, tool, environment="prod", now_ms=NOW):
        assert not refused.stale
        raise Refused
    return json.loads(order.args)


def of_tool(text: bytes) -> Any:
    """What a tool is called with."""
    return refusing(UsageError, lambda args: TOOL.arguments.load(args.decode()))(ordered(text).args.encode())


def of_catalog(kind: str, name: Callable[[Any], str], read: Callable[[Catalog], Any]) -> Callable[[bytes], Any]:
    """The content of an entry whose name is what a lax reader would make of it."""

    def take(text: bytes) -> Any:
        catalog = Catalog(TRUST)
        called = name(lax(text))
        entry = sealed(CatalogEntry(called, kind, text.decode(errors="replace")), ROOT, 1)
        catalog.follow(0, called.encode(), planted(entry, "content", text))
        if catalog.void:
            assert (dict(catalog.policies), catalog.keys, catalog.roles.by_role) == ({}, {}, {})
            assert catalog.current in ("", UNREADABLE)
            raise Refused
        return read(catalog)

    return take


def lax(text: bytes) -> Any:
    """What a lax reader makes of a text: Python's own, and of what that refuses the sample."""
    try:
        return json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def policy_name(content: Any) -> str:
    try:
        return f"policy/{Policy.parse(content).digest}"
    except UsageError:
        return f"policy/{Policy.parse(json.loads(POLICY)).digest}"


app = App("differentials")


@app.tool()
def pay(value: Any) -> None:
    """A tool that takes anything."""


TOOL = app.tools["pay"]
KEY = canonical.dumps(KEYS["vote"].public(not_before_ms=1).content())
POLICY = '{"fallback":{"approvers":["*"],"quorum":1},"rules":[]}'
ROLES = '{"revoked":[],"roles":{"lead":["ada"]}}'
DOORS: dict[str, Door] = {
    "canonical JSON": Door("{" + SLOT + "}", refusing(MalformedError, canonical.parse)),
    "the input of a run": Door("{" + SLOT + "}", refusing(MalformedError, of_request)),
    "a request as JSON": Door(
        '{"agent":"a","input":null,"not_before_ms":1,"run_id":"r"}', refusing(MalformedError, of_whole_request)
    ),
    "the input of a run in Avro": Door("{" + SLOT + "}", refusing(MalformedError, of_avro_request)),
    "the data of a signal": Door("{" + SLOT + "}", refusing(MalformedError, of_signal)),
    "the data of a signal in Avro": Door("{" + SLOT + "}", refusing(MalformedError, of_avro_signal)),
    "a signed decision": Door('{"issued":1,' + SLOT + "}", refusing(UnauthorisedError, of_token("decision"))),
    "a signed vote": Door('{"issued":1,' + SLOT + "}", refusing(UnauthorisedError, of_token("vote"))),
    "the arguments of an order": Door('{"value":{' + SLOT + "}}", of_order),
    "a key in the catalog": Door(
        KEY, of_catalog("key", lambda _: f"key/{KEYS['vote'].kid}", lambda catalog: catalog.keys)
    ),
    "a policy in the catalog": Door(POLICY, of_catalog("policy", policy_name, lambda catalog: catalog.policies)),
    "roles in the catalog": Door(ROLES, of_catalog("roles", lambda _: "roles", lambda catalog: catalog.roles.by_role)),
    "the arguments of a tool": Door('{"value":{' + SLOT + "}}", of_tool),
}


def slot_of(sample: str) -> str:
    """The pair of a sample that is a number or, in roles, a list."""
    known = (SLOT, '"not_before_ms":1', '"quorum":1', '"revoked":[]')
    return next(pair for pair in known if pair in sample)


def instead(value: str) -> Callable[[str], str]:
    """A mangling that puts another value into the slot."""
    return lambda sample: sample.replace(slot_of(sample), slot_of(sample).partition(":")[0] + ":" + value)


def twice(sample: str) -> str:
    """The key of the slot twice, the sample's own value last: what most parsers keep."""
    name, _, value = slot_of(sample).partition(":")
    other = "2" if value == "1" else '["ada"]'
    return sample.replace(slot_of(sample), f"{name}:{other},{slot_of(sample)}")


def twice_escaped(sample: str) -> str:
    """The same key in two spellings."""
    pair = slot_of(sample)
    spelt = f'"\\u00{ord(pair[1]):02x}{pair[2:]}'
    return sample.replace(pair, f"{spelt},{pair}")


MANGLINGS: dict[str, Callable[[str], str]] = {
    "a key twice": twice,
    "a key twice, once escaped": twice_escaped,
    "the first key of all twice": lambda text: "{" + text[1:].partition(",")[0].rstrip("}") + "," + text[1:],
    "NaN": instead("NaN"),
    "Infinity": instead("Infinity"),
    "minus Infinity": instead("-Infinity"),
    "nan": instead("nan"),
    "a number that becomes infinite": instead("1e400"),
    "ten thousand digits": instead("1" * 10_000),
    "a lone surrogate": instead('"\\ud800"'),
    "a lone low surrogate": instead('"\\udc00x"'),
    "surrogates the wrong way round": instead('"\\ude00\\ud83d"'),
    "a lone surrogate in a key": instead('{"\\ud800":1}'),
    "a surrogate in UTF-8": instead('"\ud800"'),
    "nesting beyond 64": instead("[" * 70 + "]" * 70),
    "nesting beyond any stack": instead("[" * 100_000 + "]" * 100_000),
    "objects beyond any stack": instead('{"a":' * 100_000 + "1" + "}" * 100_000),
    "a leading zero": instead("01"),
    "a plus": instead("+1"),
    "no digit before the point": instead(".5"),
    "no digit after the point": instead("1."),
    "a hexadecimal number": instead("0x1"),
    "an octal number": instead("0o1"),
    "an underscore": instead("1_0"),
    "a digit of another script": instead("\u0661"),
    "Python's True": instead("True"),
    "undefined": instead("undefined"),
    "an unknown escape": instead('"\\x41"'),
    "an escaped quote": instead('"\\\'"'),
    "a control character": instead('"\x01"'),
    "a tab in a text": instead('"\t"'),
    "a line break in a text": instead('"\n"'),
    "a NUL in a text": instead('"\0"'),
    "a comma before the end": instead("[1,]"),
    "a missing value": instead(""),
    "a byte order mark": lambda text: "\ufeff" + text,
    "a comment after it": lambda text: text + "//",
    "a comment within": lambda text: "{/**/" + text[1:],
    "a comment as in a shell": lambda text: text + "#",
    "something after it": lambda text: text + "x",
    "a bracket after it": lambda text: text + "}",
    "a NUL after it": lambda text: text + "\0",
    "the same again": lambda text: text + text,
    "one a line": lambda text: text + "\n" + text,
    "a space of another kind": lambda text: "\u00a0" + text,
    "a form feed": lambda text: "\f" + text,
    "single quotes": lambda text: text.replace('"', "'"),
    "typographic quotes": lambda text: text.replace('"', "\u201d"),
    "keys without quotes": lambda text: text.replace('"', ""),
    "a trailing comma": lambda text: text[:-1] + ",}",
    "no end": lambda text: text[:-1],
    "an equals sign": lambda text: text.replace(":", "="),
    "nothing": lambda text: "",
    "spaces": lambda text: "  ",
}
BYTES: dict[str, Callable[[str], bytes]] = {
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "UTF-32": lambda text: text.encode("utf-32"),
    "a byte that is not UTF-8": lambda text: instead('"@"')(text).encode().replace(b'"@"', b'"\xff"'),
    "Latin-1": lambda text: instead('"é"')(text).encode("latin-1"),
    "an overlong slash": lambda text: instead('"@"')(text).encode().replace(b'"@"', b'"\xc0\xaf"'),
    "a character beyond Unicode": lambda text: instead('"@"')(text).encode().replace(b'"@"', b'"\xf4\x90\x80\x80"'),
}


def mangled(sample: str, mangling: str) -> bytes:
    """The bytes of a mangled sample."""
    if mangling in BYTES:
        return BYTES[mangling](sample)
    return MANGLINGS[mangling](sample).encode("utf-8", "surrogatepass")


def answer(door: Door, text: bytes) -> str:
    """What a door does with a text: `taken`, `refused`, or the error that it did not expect."""
    try:
        return "taken" if door.take(text) else "nothing was read"
    except Refused:
        return "refused"
    except Exception as error:  # noqa: BLE001 - each text has its answer, whatever became of the others
        return repr(error)


@pytest.mark.parametrize("door", DOORS)
def test_a_door_takes_what_is_plain(door: str) -> None:
    assert answer(DOORS[door], DOORS[door].sample.encode()) == "taken"


@pytest.mark.parametrize("door", DOORS)
def test_a_door_refuses_what_parsers_could_disagree_on(door: str) -> None:
    sample = DOORS[door].sample
    texts = {mangling: mangled(sample, mangling) for mangling in (*MANGLINGS, *BYTES)}
    assert sample.encode() not in texts.values()

    answers = {mangling: answer(DOORS[door], text) for mangling, text in texts.items()}

    assert {mangling: said for mangling, said in answers.items() if said != "refused"} == {}


LARGE = ("9007199254740993", "-18446744073709551616", "1" * 1_000, "1e+20", "9.007199254740992e+15")
UNUSUAL = ('"é\U0001f600"', *LARGE, "9007199254740991", "1e+22", "-1", "0.1", "[" * 55 + "]" * 55, '"["')


@pytest.mark.parametrize("door", [name for name, door in DOORS.items() if SLOT in door.sample])
def test_a_door_takes_what_is_only_unusual(door: str) -> None:
    answers = {value: answer(DOORS[door], instead(value)(DOORS[door].sample).encode()) for value in UNUSUAL}

    assert {value: said for value, said in answers.items() if said != "taken"} == {}


@pytest.mark.parametrize(
    "mangling",
    [
        "a key twice",
        "a key twice, once escaped",
        "NaN",
        "Infinity",
        "a lone surrogate",
        "nesting beyond 64",
    ],
)
def test_a_door_with_a_parser_of_its_own_would_be_seen(mangling: str) -> None:
    assert json.loads(mangled(DOORS["canonical JSON"].sample, mangling)) is not None


@pytest.mark.parametrize("mangling", ["a key twice", "NaN", "nesting beyond 64"])
def test_the_parser_of_tools_would_take_some_of_it(mangling: str) -> None:
    text = mangled(DOORS["the arguments of a tool"].sample, mangling).decode()

    assert "value" in TOOL.arguments.shape.load(text)


pieces = st.sampled_from(
    ['{"value":', "}", "[", "]", '"', "a", "\\u", "d800", "0", "1", "9" * 16, "e", ".", "-", ",", ":", " "]
)
numbers = st.integers(-(2**55), 2**55) | st.floats()


@examples
@given(
    st.lists(pieces, max_size=12).map("".join)
    | numbers.map(lambda value: f'{{"value":{value}}}')
    | st.text().map(lambda value: f'{{"value":{json.dumps(value)}}}')
)
def test_what_a_tool_is_called_with_is_what_was_judged(text: str) -> None:
    try:
        found = TOOL.arguments.load(text)
    except UsageError:
        return

    assert found == canonical.parse(text)
