"""Kafka behind the ports, with confluent-kafka: `log` is a group member with its producer (for services), `reader`
reads without a group, `publisher` sends inputs for clients, `topics` applies `infra/topics.yaml`. `clients` configures
all clients and gives the reasons, `errors` maps broker errors to their meaning and the next action."""
