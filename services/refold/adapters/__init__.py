"""The worlds that the ports open to: Kafka, Redis, and a ledger in memory as a full peer of that."""
