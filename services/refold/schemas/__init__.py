"""The schemas tool: exports the Avro schemas from the Python classes and refuses changes that would break a reader."""
