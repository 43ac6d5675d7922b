"""Bytes and back: canonical JSON, Avro, framing, headers, dead letters; the one floor that reads files of its own."""
