"""Bytes and back: canonical JSON, Avro, framing, headers; the one floor that reads files of its own."""
