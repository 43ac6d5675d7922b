"""Operations of users and operators on runs and approvals, each with precondition and outcome.

**Consumes** every topic, through a `LogReader`. **Produces** `run-requested`, `run-signalled`, `approval-voted` (users)
and `run-operated` (operators), through a `Sender`. **Guarantees**: an impossible operation is refused before anything
is sent; outcomes are read from the log or from dead letters. **Fails** with TimedOutError: the sent input stays.
"""
