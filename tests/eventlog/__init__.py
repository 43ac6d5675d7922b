"""The event log in memory, a full peer of Kafka: for the simulator and for tests."""
