"""The planner: decides what an input means for a run, and appends it to the run log.

**Consumes** `run-requested` (its group), and by hand the same partitions of `run-signalled`, `run-operated`,
`tool-completed.<pool>`, `approval-decided`, `run-log` and `catalog`. **Produces** `run-log`, and from accepted entries
`tool-requested.<pool>`, `approval-requested` and `run-completed`; strays go home, what nobody can use goes to
`dead-letter`.

**Guarantees** An input is applied whole or not at all, once, in the order of the log. Nothing is ordered from others
before the entry that orders it is accepted. A run that waits for a call waits until a deadline that is in the log.

**When it dies** its successor folds `run-log`, emits the unacknowledged tail of commands again, drives every live run
to its frontier, and reads the inputs again from the low-water mark. **When it is a zombie** it writes void records, or
extends a run as well as its successor would. Ownership is an optimisation; the hash chain is what keeps it safe.

Where to look: `service` is all lanes of a process, `lane` one partition. In it an input goes from `intake` through
`deciding`, where agent code runs (`agents`), into the log; `log` says what counts there and sends what that orders.
`recovery` is how a lane begins and how it reads histories again, `snapshot` what it keeps for that.
"""
