"""Runs as anyone can know them: read from the topics alone, with no service, group or database in between.

**Consumes** every topic, through a `LogReader`. **Produces** what users may, `run-requested`, `run-signalled` and
`approval-voted`, and for operators `run-operated`.

Where to look: `timeline` tells a run step by step; `runs` finds, lists and follows runs; `inputs` sends something and
learns what became of it; `register` is what is known of approvals, `approvals` what is said of them; `catalog` is what
operators publish, `policies` their files, `hindsight` a policy asked about the past; `verify` re-checks everything from
raw bytes.

**Guarantees**: the same rule as the planner's (`core.run.log`), so that what is shown here is what the planner acts on.
**Fails** by raising UnreachableError; nothing here is remembered, so asking again is always right.
"""
