"""A deployment in five steps on a real Kafka, with processes killed on the way: `make demo`."""
