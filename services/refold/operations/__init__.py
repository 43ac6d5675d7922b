"""Operations of users and operators on runs and questions, each with its precondition and its outcome.

**Consumes** every topic, through a `LogReader`. **Produces** `run-requested`, `run-signalled` and `approval-voted` for
users, and `run-operated` for operators, through a `Sender`.

`run` has a row for each operation on a run; `operation` performs `one` of them, or `many`; `runs` reads and selects
runs from the log; `approvals` reads questions and sends votes.

**Guarantees**: an impossible operation is refused before anything is sent; its outcome is read from the log, or from
its dead letter. **Fails** by raising TimedOutError: the sent input stays in the log."""
