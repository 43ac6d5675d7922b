"""The relay: empties the outbox into `tool-completed.<pool>`.

**Consumes** the outbox in the ledger, of the homes of its process. **Produces** `tool-completed.<pool>`.

**Guarantees** Every result in the outbox is published at least once, and dropped only after the log has acknowledged
it; the planner takes one answer per call. It runs in the executor's process, which has the assignment of homes; the
next owner of a home finds the results of a dead process.
"""
