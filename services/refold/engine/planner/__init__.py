"""The planner: decides how an input changes a run, and appends that to the run log.

**Consumes** `run-requested` (its group), and by hand the same partitions of `run-signalled`, `run-operated`,
`tool-completed.<pool>`, `approval-decided`, `run-log` and `catalog`. **Produces** `run-log`, and from accepted entries
`tool-requested.<pool>`, `approval-requested` and `run-completed`; strays go to their home partition, unusable inputs to
`dead-letter`.

**Guarantees** An input is applied whole or not at all, once, in log order. No command is sent before its entry is
accepted. A run that waits for a call has a deadline in the log.

**When it dies** its successor folds `run-log`, repeats the unacknowledged commands, drives every live run, and reads
the inputs from the low-water mark. **When it is a zombie** it writes void records, or extends a run as well as its
successor would: ownership is an optimisation, the hash chain is the safety.

`service` holds all lanes of a process, `lane` one partition. An input goes from `intake` through `deciding` and agent
code (`agents`) into `log`, which accepts entries and sends their commands. `recovery` takes a lane over, `snapshot`
writes the state for that.
"""
