"""The relay: empties the outbox into `tool-completed.<pool>`.

**Consumes** the outbox in the ledger, of the homes of its process. **Produces** `tool-completed.<pool>`.

**Guarantees** Every result in the outbox is published at least once and dropped only after the log has acknowledged it.
The planner takes one answer per call, so a second copy is harmless. It runs in the executor's process, which has the
assignment of homes; a result of a dead process is found by the next owner of the home.
"""
