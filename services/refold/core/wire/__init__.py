"""Bytes and back: canonical JSON, Avro, framing, headers. The only part of `core` that reads files."""
