"""The schemas tool: exports the Avro schemas from the Python classes and refuses what would break a reader."""
