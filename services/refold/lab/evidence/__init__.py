"""Evidence: records of runs in one file, verified without Kafka and without trust in its writer."""
