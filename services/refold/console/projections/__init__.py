"""Projections: SQL tables filled from the run log, which can be dropped and rebuilt at any time.

**Consumes** `run-log` and the erasure markers of `run-snapshot`, by position and without a consumer group. **Produces**
rows in SQLite, Postgres, or memory in tests.

**Guarantees** Rows and positions are written in one transaction: a crash repeats or loses nothing. A row belongs to one
run, or it is a sum, so any order of partitions and size of batches gives the same rows, and `verify` compares them. No
writer of the log reads a view.

**Fails** by halting with a reason: another log under the same position, a cut log, a projection whose code raises. A
run that the log cannot explain becomes a row with the reason.
"""
