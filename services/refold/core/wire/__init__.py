"""Bytes and back: canonical JSON, Avro, framing, headers; the only part of `core` that reads files."""
