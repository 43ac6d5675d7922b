"""Which errors of Kafka end a process: those by which a broker has answered and refused, and no others."""

from __future__ import annotations

import ast
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeGuard

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from refold.core.errors import UnreachableError, UsageError
from refold.engine.adapters.kafka.errors import MEANINGS, is_final, translate
from tests.tidy.repository import ROOT
from tests.waiting import eventually

API_VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36
APIS = ((API_VERSIONS, 3), (HANDSHAKE, 1), (AUTHENTICATE, 1), (3, 9))


def answer_to(api: int) -> bytes:
    """What a broker says to a login: it knows SCRAM, and it refuses the password."""
    if api == API_VERSIONS:
        ranges = b"".join(struct.pack(">hhhB", number, 0, most, 0) for number, most in APIS)
        return struct.pack(">hB", 0, len(APIS) + 1) + ranges + struct.pack(">iB", 0, 0)
    if api == HANDSHAKE:
        return struct.pack(">hih", 0, 1, 13) + b"SCRAM-SHA-256"
    text = b"Authentication failed"
    return struct.pack(">hh", KafkaError.SASL_AUTHENTICATION_FAILED, len(text)) + text + struct.pack(">iq", -1, 0)


def talk(connection: socket.socket, gone_at: int) -> None:
    """Answer requests of a connection, until one comes at which this broker is gone."""
    with closing(connection), suppress(OSError, struct.error):
        while True:
            (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
            api, _, number = struct.unpack(">hhi", connection.recv(size, socket.MSG_WAITALL)[:8])
            if api == gone_at:
                return
            body = answer_to(api)
            connection.sendall(struct.pack(">ii", len(body) + 4, number) + body)


@contextmanager
def broker(gone_at: int) -> Iterator[str]:
    """A broker that is killed in the middle of each login, at a request of this kind."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    talk(server.accept()[0], gone_at)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def error_of(gone_at: int, about: str) -> KafkaError:
    """The error about a login that a client reports."""
    errors: list[KafkaError] = []
    with broker(gone_at) as address:
        login: dict[str, Any] = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "ada", "sasl.password": "secret"}
        own: dict[str, Any] = {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", "log_level": 0}
        own |= {**login, "error_cb": errors.append}
        client = AdminClient(own)

        def reported() -> KafkaError | None:
            client.poll(0.05)
            return next((each for each in errors if about in each.str()), None)

        return eventually(reported)


@pytest.mark.parametrize("gone_at", [HANDSHAKE, AUTHENTICATE])
def test_a_broker_that_goes_away_in_the_middle_of_a_login_has_not_refused_it(gone_at: int) -> None:
    error = error_of(gone_at, "SASL")

    assert not is_final(error)
    assert isinstance(translate(error, "go on"), UnreachableError)


def test_a_broker_that_refuses_a_login_ends_the_process() -> None:
    error = error_of(0, "SASL authentication error")

    assert is_final(error)
    assert isinstance(translate(error, "go on"), UsageError)
    assert "check the credentials" in str(translate(error, "go on"))


def test_a_request_that_waited_for_a_login_proves_nothing() -> None:
    assert not is_final(KafkaError(KafkaError._AUTHENTICATION))


def test_a_topic_that_a_broker_does_not_know_is_waited_for() -> None:
    meaning = MEANINGS[KafkaError.UNKNOWN_TOPIC_OR_PART]

    assert 0 < meaning.start_s < meaning.later_s < 300
    assert not is_final(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))


JUDGED = frozenset(code for code in MEANINGS if code != KafkaError._FATAL)
ALLOWED = {
    ("acls.py", "CLUSTER_AUTHORIZATION_FAILED"): "words for a command that reads rights",
    ("log.py", "UNKNOWN_TOPIC_OR_PART"): "raised, not judged",
    ("light.py", "UNKNOWN_TOPIC_OR_PART"): "raised, not judged",
    ("topics.py", "UNKNOWN_TOPIC_OR_PART"): "a topic that was made a moment ago is listed as missing",
}


def test_one_table_alone_judges_what_an_error_means() -> None:
    found = set[tuple[str, str]]()
    for path in (ROOT / "services/refold").rglob("*.py"):
        if path.name == "errors.py" and path.parent.name == "kafka":
            continue
        named = {each.attr for each in ast.walk(ast.parse(path.read_text())) if _is_code(each)}
        found |= {(path.name, name) for name in named if getattr(KafkaError, name) in JUDGED}

    assert found == ALLOWED.keys()


def _is_code(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "KafkaError"
