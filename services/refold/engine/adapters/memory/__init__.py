"""Event log and ledger in memory, under the contract suites of Kafka and Redis; `lasting` ones are in a file."""
