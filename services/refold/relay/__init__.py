"""The relay: empties the outbox into `tool-completed.<pool>`.

**Consumes** the outbox in the ledger, of the homes that its process has. **Produces** `tool-completed.<pool>`.

**Guarantees** Every result in the outbox is published at least once and dropped only after the log has acknowledged
it. The planner takes one answer per call, so a second copy is harmless. It lives in the executor's process, where
the assignment of homes is; a result of a process that died is found by whoever gets the home.
"""
