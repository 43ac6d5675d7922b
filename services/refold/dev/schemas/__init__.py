"""Export of Avro schemas from the Python classes, and refusal of changes that would break a reader."""
