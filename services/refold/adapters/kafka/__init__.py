"""Kafka behind the ports, with confluent-kafka.

`log` is one member of a group with its producer (what services run on), `reader` reads without a group, `publisher`
sends inputs for clients, `topics` keeps the cluster's topics as `infra/topics.yaml` says. `clients` holds what every
client is configured with and why, `errors` says what a broker's error means and what to do about it."""
