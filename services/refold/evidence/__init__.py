"""Evidence: records of runs in one file that is verified without Kafka, and without trust in who wrote it.

`bundle` is the format, `redaction` replaces arguments and results by their digests, `verify` checks a bundle in one
pass. What a bundle proves, and against whom, is in docs/guides/why.md.
"""
