"""Operations: what users and operators ask of runs and questions, each with what must hold and what it looks like done.

**Consumes** every topic, through a `LogReader`. **Produces** what users may, `run-requested`, `run-signalled` and
`approval-voted`, and for operators `run-operated`, through a `Sender`.

Where to look: `run` has a row for each operation on a run; `operation` performs `one` of them, or `many`; `runs` reads
runs from the log, and selects those that many are meant by; `approvals` reads questions and sends votes.

**Guarantees**: an operation is refused before anything is sent where the log shows that it cannot be; its outcome is
what the log says afterwards, or what its dead letter says. **Fails** by raising TimedOutError: nothing is lost, what
was sent stays in the log."""
