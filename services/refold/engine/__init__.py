"""The engine: services that decide, act and answer for runs, the ports that they know, and the adapters behind those.

`ports` are contracts, `adapters` fulfil them (Kafka, Redis, memory, blob stores), `runtime` hosts services. They are
`planner`, `executor` with its `relay`, `approval` and `archive`: they meet in topics, and none imports another.
"""
