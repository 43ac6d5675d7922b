"""The worlds that the ports open to: Kafka, Redis, and memory as a full peer of both."""
