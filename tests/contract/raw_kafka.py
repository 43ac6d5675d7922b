"""Writes what confluent-kafka refuses to write, with the librdkafka that it brings along."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_size_t, c_ssize_t, c_void_p
from pathlib import Path

import confluent_kafka
from confluent_kafka import KafkaError, Producer

_TOPIC, _PARTITION, _VALUE, _KEY, _MSGFLAGS, _HEADERS = 1, 3, 4, 5, 7, 10
_COPY = 2


class _Memory(ctypes.Structure):
    _fields_ = (("address", c_void_p), ("size", c_size_t))


class _Field(ctypes.Union):
    _fields_ = (("text", c_char_p), ("number", c_int32), ("memory", _Memory), ("pointer", c_void_p), ("_", c_char * 64))


class _Argument(ctypes.Structure):
    _fields_ = (("kind", c_int), ("field", _Field))


def write_with_header(bootstrap: str, topic: str, *, name: bytes, key: bytes, value: bytes) -> None:
    """Writes one record to partition 0 with a header of any name, and waits for the ack."""
    lib = _library()
    error = ctypes.create_string_buffer(512)
    settings = lib.rd_kafka_conf_new()
    lib.rd_kafka_conf_set(settings, b"bootstrap.servers", bootstrap.encode(), error, 512)
    producer = lib.rd_kafka_new(0, settings, error, 512)
    headers = lib.rd_kafka_headers_new(1)
    lib.rd_kafka_header_add(headers, name, len(name), b"v", 1)
    held = [ctypes.create_string_buffer(value, len(value)), ctypes.create_string_buffer(key, len(key))]
    value_at, key_at = (_Memory(ctypes.addressof(each), len(each)) for each in held)
    arguments = (_Argument * 6)(
        _Argument(_TOPIC, _Field(text=topic.encode())),
        _Argument(_PARTITION, _Field(number=0)),
        _Argument(_VALUE, _Field(memory=value_at)),
        _Argument(_KEY, _Field(memory=key_at)),
        _Argument(_MSGFLAGS, _Field(number=_COPY)),
        _Argument(_HEADERS, _Field(pointer=headers)),
    )
    assert lib.rd_kafka_produceva(producer, arguments, len(arguments)) is None, "the record was refused"
    assert lib.rd_kafka_flush(producer, 60_000) == 0, "the record was not acknowledged"
    lib.rd_kafka_destroy(producer)


def break_for_good(producer: Producer) -> None:
    """Has a producer find out that it can never go on: what librdkafka offers for tests of that."""
    handle = c_void_p.from_address(id(producer) + object.__basicsize__)
    _library().rd_kafka_test_fatal_error(handle, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"records were lost")


def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    lib = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    for name, arguments, result in (
        ("rd_kafka_conf_new", (), c_void_p),
        ("rd_kafka_conf_set", (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t), c_int),
        ("rd_kafka_new", (c_int, c_void_p, c_char_p, c_size_t), c_void_p),
        ("rd_kafka_test_fatal_error", (c_void_p, c_int, c_char_p), c_int),
        ("rd_kafka_headers_new", (c_size_t,), c_void_p),
        ("rd_kafka_header_add", (c_void_p, c_char_p, c_ssize_t, c_char_p, c_ssize_t), c_int),
        ("rd_kafka_produceva", (c_void_p, POINTER(_Argument), c_size_t), c_void_p),
        ("rd_kafka_flush", (c_void_p, c_int), c_int),
        ("rd_kafka_destroy", (c_void_p,), None),
    ):
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, result
    return lib
