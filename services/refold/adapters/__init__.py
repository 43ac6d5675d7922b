"""Implementations of the ports: Kafka, Redis, SQL databases, blob stores, files, and a ledger in memory."""
