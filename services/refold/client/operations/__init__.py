"""Operations of users and operators on runs and approvals, each with precondition and outcome.

**Consumes** every topic, through a `LogReader`. **Produces** `run-requested`, `run-signalled`, `approval-voted` (users)
and `run-operated` (operators), through a `Sender`.

`run`: the operations on a run. `operation`: performs `one` or `many`. `runs`: reads and selects runs. `approvals`:
reads questions and sends votes.

**Guarantees**: an impossible operation is refused before anything is sent; outcomes are read from the log or from dead
letters. **Fails** with TimedOutError: the sent input stays in the log.
"""
