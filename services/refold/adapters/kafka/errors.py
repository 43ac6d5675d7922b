"""Meaning of an error of Kafka: wait, nothing was written for certain, or the end of this process."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from refold.core.errors import ConflictError, RefoldError, UnreachableError, UsageError

UNKNOWN_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
UNLED = frozenset({KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION})
"""A partition is between two leaders: the broker is there, and the answer comes later."""

REFUSED = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD})
"""The broker will never take this record, and has not."""

_FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_LOGIN = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL})
_FENCED = frozenset({KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED})
_SETUP = frozenset(
    {KafkaError.INCONSISTENT_GROUP_PROTOCOL, KafkaError.INVALID_SESSION_TIMEOUT, KafkaError._INVALID_ARG}
)


def of(error: KafkaException) -> KafkaError:
    found = error.args[0]
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(found))


_GRANT = "grant this principal the ACLs of its role (`refold topics acls`); the role `operator` reads every topic"


def is_final(error: KafkaError) -> bool:
    """True if waiting cannot help: the process has to stop and say why."""
    code = error.code()
    return (
        error.fatal()
        or code == KafkaError._FATAL
        or any(code in group for group in (UNKNOWN_TOPIC, _FORBIDDEN, _LOGIN, _FENCED, _SETUP))
    )


def translate(error: KafkaError | KafkaException, what: str) -> RefoldError:
    """The error as one of ours, with the next action. `what` says what could not be done: "read the topics"."""
    if isinstance(error, KafkaException):
        error = of(error)
    code, facts = error.code(), {"kafka": error.name()}
    message = f"cannot {what}: {error.str()}"
    if code in UNKNOWN_TOPIC:
        return UsageError(message, hint="create the topics with `refold topics apply`", **facts)
    if code in _FORBIDDEN:
        return UsageError(message, hint=_GRANT, **facts)
    if code in _LOGIN:
        return UsageError(message, hint="check the credentials and certificates in REFOLD_KAFKA__OPTIONS", **facts)
    if code in _FENCED or "fenced" in error.str().lower():
        hint = "start it again after an outage of the broker; if there was none, give each process its own --member"
        return ConflictError(message, hint=hint, **facts)
    if code in _SETUP:
        return UsageError(message, hint="all members of a group need the same settings, check REFOLD_KAFKA__*", **facts)
    if error.fatal() or code == KafkaError._FATAL:
        return RefoldError(message, hint="the Kafka client cannot go on; restart this process", **facts)
    if code in UNLED:
        return UnreachableError(message, hint="leaders are being elected: try again in some seconds", **facts)
    return UnreachableError(
        message, hint="`refold doctor` checks the broker and its address, REFOLD_KAFKA__BOOTSTRAP", **facts
    )
