"""Evidence: records of runs in one file that is verified without Kafka, and without trust in its writer. What a bundle
proves, and against whom, is in docs/guides/why.md."""
