"""Projections: SQL tables filled from the run log, which can be dropped and rebuilt at any time.

**Consumes** `run-log` and the erasure markers of `run-snapshot`, by position and without a consumer group. **Produces**
rows in a database of the reader's own: SQLite, Postgres, or memory in tests.

**Guarantees** Rows and the position of the log are written in one transaction, so a crash repeats or loses nothing. A
row belongs to one run, or it is a sum: any order of partitions and any size of batches gives the same rows, and
`verify` compares them by digests. No writer of the log reads a view.

**Fails** by halting with a reason: another log under the same position, a log that was cut, a projection whose code
raises. A run that the log cannot explain becomes a row with the reason; others go on.
"""
