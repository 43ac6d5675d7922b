"""Implementations of the ports: Kafka, Redis, SQL databases, blob stores, files, memory and tools."""
