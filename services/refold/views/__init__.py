"""Read models: what users see of runs, people's questions, budgets and letters, made by folds over accepted records.

**Consumes** records, given in order of offset; reads no topic itself. **Produces** frozen models. `--json` prints their
`dump()`, `refold.client` returns them, and the command line renders them, so that there is one shape of each thing.

Where to look: `steps` folds a history into steps, `history` is a run with its records, `run` is what is shown of one
and of the versions that live runs need, `approval` is what is known of people's questions, `budget` and `letter` are
the lists of operators.

**Guarantees**: the planner's own rule (`core.run.log`) decides what is accepted, so what is shown is what the planner
acts on. Pure: imports `core` and nothing else of Refold.
"""
