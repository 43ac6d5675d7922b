"""Identifiers and derived keys. No id contains the separator of its key, so no key is read as that of another run."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import unhexlify
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NewType

from refold.core.errors import MalformedError

if TYPE_CHECKING:
    RunId = NewType("RunId", str)
    CallId = NewType("CallId", str)
    EntryId = NewType("EntryId", bytes)
else:  # the schema export and the JSON reader need the plain types of fields
    RunId, CallId, EntryId = str, str, bytes

NO_ENTRY = EntryId(b"")
"""The `prev` of a run's first entry."""

HOLD_KEY = b"hold/"

_ROOT = r"[A-Za-z0-9_](?:[A-Za-z0-9_:@~-]{0,126}[A-Za-z0-9_])?"
_GENERATION = r"(?:\+(?:[2-9]|[1-9][0-9]{1,8}))?"
_RUN = rf"(?=[^/]{{1,255}}(?:/|\Z)){_ROOT}{_GENERATION}(?:\.[1-9][0-9]{{0,9}}(?:_[1-9][0-9]{{0,5}})?)*"
_RUN_ID = re.compile(rf"{_RUN}\Z")
_SEQ = re.compile(r"[1-9][0-9]{0,9}\Z")
_QUESTION = re.compile(r"[0-9a-f]{32}\Z")
# Numbers have ten digits and fit the 32 bits that rows of finished runs and kept entries have for them.
_LOG_KEY = re.compile(rf"({_RUN})/(?!0{{10}})([0-3][0-9]{{9}})/([0-9a-f]{{32}})\Z".encode())


def run_id(text: str) -> RunId:
    """Parse a run id: 1 to 128 letters, digits, `_ : @ ~ -`; a `+` precedes the number of a generation from the second
    on, dots precede child numbers. **Raises** MalformedError."""
    if not _RUN_ID.match(text):
        hint = "use up to 128 letters, digits and _ : @ ~ - (a dot is kept for child runs)"
        raise MalformedError(f"{text[:80]!r} is not a run id", hint=hint)
    return RunId(text)


AGENT_TOOL = "agent:"
"""Prefix of the call name of an agent that runs in memory. No tool name contains a colon."""

AGENT_TOOL_NAME = re.compile(rf"{AGENT_TOOL}[^\s/@][^\s/]{{0,255}}\Z")


def agent_tool(agent: str, version: str) -> str:
    return f"{AGENT_TOOL}{agent}@{version}" if version else f"{AGENT_TOOL}{agent}"


def root_of(run: str) -> str:
    """First run of a family, by the name of its first generation."""
    return run.partition(".")[0].partition("+")[0]


def generation_of(run: str) -> int:
    return int(run.partition(".")[0].partition("+")[2] or 1)


def generation_id(root: str, number: int) -> RunId:
    """Id of a generation of a run; the first has the run's plain name."""
    return RunId(f"{root}+{number}" if number > 1 else root)


def next_generation(run: RunId) -> RunId:
    return generation_id(root_of(run), generation_of(run) + 1)


def child_id(parent: str, step: int, number: int = 0) -> RunId:
    """Id of the child started by a step; `number` distinguishes several children of one step."""
    return RunId(f"{parent}.{step}_{number}" if number else f"{parent}.{step}")


def parent_of(run: str) -> tuple[RunId, int]:
    """Parent of a run and the step that waits for it: an empty id without a parent, 0 if no step waits."""
    parent, _, step = run.rpartition(".")
    return RunId(parent), int(step) if parent and step.isdecimal() else 0


def parents_of(run: str) -> list[RunId]:
    parts = run.split(".")
    return [RunId(".".join(parts[:count])) for count in range(1, len(parts))]


def is_below(run: str, above: str) -> bool:
    return run == above or run.startswith(f"{above}.")


def depth_of(run: str) -> int:
    return run.count(".")


def murmur2(data: bytes) -> int:
    """Hash of Kafka's Java client, as an unsigned 32-bit number. **Source**: `Utils.murmur2` of Apache Kafka."""
    length, m, mask = len(data), 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ length
    for i in range(0, length & ~3, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if tail := data[length & ~3 :]:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)


def home(run: str, partitions: int) -> int:
    """Partition of a run's whole family, as any Java-compatible producer computes it from the root's id."""
    return (murmur2(root_of(run).encode()) & 0x7FFFFFFF) % partitions


def entry_id(body: bytes) -> EntryId:
    """Id of a run-log entry: BLAKE2b-128 of its Avro body without the schema frame."""
    return EntryId(blake2b(body, digest_size=16).digest())


def log_key(run: RunId, seq: int, entry: EntryId) -> bytes:
    # Unique, or compaction could replace the accepted entry by one that lost.
    return b"%s/%010d/%s" % (run.encode(), seq, entry.hex().encode())


def hold_key(run: RunId) -> bytes:
    return HOLD_KEY + run.encode()


def parse_log_key(key: bytes | None) -> tuple[RunId, int, EntryId] | None:
    """Parts of a run-log key; None if `log_key` does not write such a key."""
    match = _LOG_KEY.match(key or b"")
    if not match:
        return None
    run, digits, entry = match.groups()
    return RunId(run.decode()), int(digits), EntryId(unhexlify(entry))


def call_id(run: RunId, seq: int) -> CallId:
    return CallId(f"{run}/{seq}")


def trace_id(run: RunId, activation: int) -> str:
    """Hex trace id of an activation: the work of a run from event `activation` until it waits."""
    return blake2b(b"%s/%d" % (run.encode(), activation), digest_size=16).hexdigest()


def attempt_trace(run: RunId, activation: int, call: CallId, attempt: int) -> str:
    span = blake2b(b"%s/%d" % (call.encode(), attempt), digest_size=8).hexdigest()
    return f"00-{trace_id(run, activation)}-{span}-01"


def activation_span(run: RunId, activation: int) -> str:
    return blake2b(b"%s/%d/root" % (run.encode(), activation), digest_size=8).hexdigest()


@lru_cache(1_024)  # one call is parsed several times in a row
def parse_call_id(text: str) -> tuple[RunId, int]:
    """Run and seq in a call id. **Raises** MalformedError."""
    run, _, seq = text.partition("/")
    if not _SEQ.match(seq):
        hint = "a call id is RUN/SEQ, as `refold run show` prints it"
        raise MalformedError(f"{text[:80]!r} is not a call id", hint=hint)
    return run_id(run), int(seq)


def approval_id(call: str, question: str) -> str:
    """Id of a question about a call: the call id and the first 128 bits of the question's digest in hex."""
    return f"{call}~{question[:32]}"


def parse_approval_id(text: str) -> tuple[RunId, int, str]:
    """Run, seq of the call, and start of the digest in an approval id. **Raises** MalformedError."""
    run, _, rest = text.partition("/")
    seq, _, question = rest.partition("~")
    if not _SEQ.match(seq) or not _QUESTION.match(question):
        hint = "it is RUN/SEQ~DIGEST, as `refold approval show` prints it"
        raise MalformedError(f"{text[:200]!r} is not the id of an approval", hint=hint)
    return run_id(run), int(seq), question


def asked_about(name: str) -> str:
    """Call id in an approval id or in the beginning of one; a call id is returned unchanged."""
    run, slash, rest = name.partition("/")
    return f"{run}{slash}{rest.partition('~')[0]}"


_CALLBACK, _SECRET_BYTES, _LONGEST_TOKEN = "cb_", 16, 512
LIFE_CALLBACKS = 1_000_000
"""Distance between the callback numbers of a run before and after a retry."""


def signal_id(run: RunId, step: int) -> str:
    """Id of a signal sent by a step, equal at each repetition."""
    return f"{run}/{step}"


def callback_token(run: RunId, seed: str, number: int) -> str:
    """Token of a run's callback, which contains the run id."""
    place = f"{run}/{number}".encode()
    # Only the owner of the seed can compute it. Replay computes it again, so the log needs only its digest.
    secret = blake2b(place, key=seed.encode()[:64], digest_size=_SECRET_BYTES, person=b"callback").digest()
    return _CALLBACK + urlsafe_b64encode(secret + place).decode().rstrip("=")


def parse_callback_token(text: str) -> RunId:
    """Run id in a callback token; the secret is not checked. **Raises** MalformedError."""
    try:
        body = text.removeprefix(_CALLBACK)
        place = urlsafe_b64decode(body + "=" * (-len(body) % 4))[_SECRET_BYTES:].decode()
    except ValueError:
        place = ""
    run, slash, number = place.partition("/")
    if len(text) > _LONGEST_TOKEN or not text.startswith(_CALLBACK) or not slash or not _SEQ.match(number):
        raise MalformedError("this is not the token of a callback", hint="it begins with cb_ and is passed on whole")
    return run_id(run)


def callback_digest(token: str) -> str:
    # Lookups compare digests: no comparison leaks how much of a token was right.
    return blake2b(token.encode("utf-8", "replace"), digest_size=16).hexdigest()
