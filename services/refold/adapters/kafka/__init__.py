"""Kafka behind the ports, with confluent-kafka.

`log` is one member of a group with its producer (for services), `reader` reads without a group, `publisher` sends
inputs for clients, `topics` applies `infra/topics.yaml`. `clients` configures every client and gives the reasons,
`errors` maps a broker's errors to their meaning and the next action."""
