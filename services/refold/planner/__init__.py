"""The planner: decides how an input changes a run, and appends that to the run log.

**Consumes** `run-requested` (its group), and by hand the same partitions of `run-signalled`, `run-operated`,
`tool-completed.<pool>`, `approval-decided`, `run-log` and `catalog`. **Produces** `run-log`, and from accepted entries
`tool-requested.<pool>`, `approval-requested` and `run-completed`; strays go to their home partition, unusable inputs to
`dead-letter`.

**Guarantees** An input is applied whole or not at all, once, in the order of the log. No command is sent before the
entry that orders it is accepted. A run that waits for a call has a deadline in the log.

**When it dies** its successor folds `run-log`, sends the unacknowledged tail of commands again, drives every live run
to its frontier, and reads the inputs again from the low-water mark. **When it is a zombie** it writes void records, or
extends a run as well as its successor would. Ownership is an optimisation; the hash chain is the safety.

`service` holds all lanes of a process, `lane` one partition: an input goes from `intake` through `deciding`, where
agent code runs (`agents`), into the log; `log` accepts entries and sends their commands. `recovery` takes a lane over
and reads histories again, `snapshot` writes the state that a take-over needs.
"""
