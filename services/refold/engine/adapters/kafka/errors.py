"""Meaning of each Kafka error: how long to wait, and the next action."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from math import inf
from typing import NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException

from refold.core.errors import ConflictError, RefoldError, UnreachableError, UsageError

_T = TypeVar("_T")

ANSWER_S = 15.0
"""Longest wait for the answer to an admin client."""

REFUSED = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD})
"""Errors after which the broker has not stored a record, and never will."""

# A reader with `auto.offset.reset=error` gets them: what lies between must not be skipped silently.
OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE})
"""Errors of a position outside the log."""


class Meaning(NamedTuple):
    """Seconds that an error may last before it ends a starting process, and a running one; 0: waiting cannot help.
    `kind` and `hint` are of the error shown to users."""

    start_s: float
    later_s: float
    kind: type[RefoldError]
    hint: str


# A coordinator that fails over in the middle of a join may fence the very member that it answers.
FENCED = Meaning(0, 60, ConflictError, "another process has this name: give each process its own --member")
_FATAL = Meaning(0, 0, RefoldError, "the Kafka client cannot go on; restart this process")
_AWAY = Meaning(
    *(inf, inf, UnreachableError), "`refold doctor` checks the broker and its address, REFOLD_KAFKA__BOOTSTRAP"
)
_LOGIN = Meaning(0, 0, UsageError, "check the credentials and certificates in REFOLD_KAFKA__OPTIONS")
# A broker that has just been started answers before it has its metadata.
NO_TOPIC = Meaning(3, 60, UsageError, "create the topics with `refold topics apply`")
_FORBIDDEN = Meaning(
    *(0, 0, UsageError),
    "grant this principal the ACLs of its role (`refold topics acls`); the role `operator` reads every topic",
)
_SETUP = Meaning(0, 0, UsageError, "all members of a group need the same settings, check REFOLD_KAFKA__*")
_ELECTION = Meaning(inf, inf, UnreachableError, "leaders are being elected: try again in some seconds")

MEANINGS: Mapping[int, Meaning] = {
    getattr(KafkaError, name): meaning
    for meaning, names in (
        (NO_TOPIC, "UNKNOWN_TOPIC_OR_PART UNKNOWN_TOPIC_ID _UNKNOWN_TOPIC _UNKNOWN_PARTITION"),
        (_ELECTION, "LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION"),
        (_FORBIDDEN, "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED"),
        (_FORBIDDEN, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
        (_LOGIN, "SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM _SSL"),
        (_LOGIN._replace(start_s=inf, later_s=inf, kind=UnreachableError), "_AUTHENTICATION"),
        (FENCED, "FENCED_INSTANCE_ID _FENCED"),
        (_SETUP, "INCONSISTENT_GROUP_PROTOCOL INVALID_SESSION_TIMEOUT _INVALID_ARG"),
        (_FATAL, "_FATAL"),
    )
    for name in names.split()
}
"""Meanings by code; all other codes mean an unreachable broker."""

UNKNOWN_TOPIC = frozenset(code for code, known in MEANINGS.items() if known is NO_TOPIC)
UNLED = frozenset(code for code, known in MEANINGS.items() if known is _ELECTION)
"""Errors of a partition between two leaders."""

# librdkafka 2.16 gives `_AUTHENTICATION` to a refusal, to a connection that ends in the middle of a handshake, and to
# each request that waits for either. Taken for a refusal, the restart of a broker ends services.
_REFUSALS = ("SASL authentication error: ", "handshake failed: Broker: ")


def kafka_error(error: KafkaException) -> KafkaError:
    cause = error.args[0]
    return cause if isinstance(cause, KafkaError) else KafkaError(KafkaError._FAIL, str(cause))


def meaning(error: KafkaError) -> Meaning:
    """Meaning of an error; for broken clients and logins it depends on more than the code."""
    text = error.str()
    entry = MEANINGS.get(error.code(), _AWAY)
    if error.code() == KafkaError._AUTHENTICATION and any(refusal in text for refusal in _REFUSALS):
        entry = _LOGIN
    if error.fatal() and entry.later_s:
        entry = _FATAL
    return FENCED._replace(later_s=entry.later_s) if "fenced" in text.lower() else entry


def is_final(error: KafkaError) -> bool:
    """True if waiting cannot help, so that the process must end."""
    return meaning(error).later_s == 0


@contextmanager
def translated(action: str) -> Iterator[None]:
    """A `with` block of requests to brokers. **Raises** our errors for Kafka's; `action` failed."""
    try:
        yield
    except KafkaException as error:
        raise translate(error, action) from None


def admin_result(future: Future[_T], action: str, *, unless: int | None = None) -> _T | None:
    """Result of an admin client's request, None for the error `unless`. **Raises** our errors for all others."""
    try:
        return future.result(ANSWER_S)
    except KafkaException as error:
        if kafka_error(error).code() != unless:
            raise translate(error, action) from None
        return None
    except TimeoutError:
        raise translate(KafkaError(KafkaError._TIMED_OUT), action) from None


def translate(error: KafkaError | KafkaException, action: str) -> RefoldError:
    """Convert an error to ours, with the next action; `action` failed, as "read the topics"."""
    if isinstance(error, KafkaException):
        error = kafka_error(error)
    entry = meaning(error)
    return entry.kind(f"cannot {action}: {error.str()}", hint=entry.hint, kafka=error.name())
