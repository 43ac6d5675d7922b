"""Projections: tables that the run log fills, to be queried with SQL, dropped and rebuilt at any time.

**Consumes** `run-log` and the erasure markers of `run-snapshot`, by position and without a consumer group. **Produces**
rows in a database of the reader's own: SQLite, Postgres, or memory in tests.

**Guarantees** A view contains what the log contains. Rows and the position of the log are written in one transaction,
so a crash repeats or loses nothing. A row belongs to one run, or it is a sum: any order of partitions and any size of
batches gives the same rows, and `verify` proves it by digests. Nothing that writes the log ever reads a view.

**Fails** by standing still and saying so: another log under the same position, a log that was cut, a projection whose
code raises. A run that cannot be told from the log is a row with the reason, and the others go on.
"""
