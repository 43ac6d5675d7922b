"""The engine: the services `planner`, `executor` with its `relay`, `approval` and `archive`, which meet in topics
alone; the contracts that they know (`ports`), the `adapters` that fulfil those (Kafka, Redis, memory, blob stores), and
the `runtime` that hosts services."""
