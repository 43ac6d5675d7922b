"""Read models of runs, questions, budgets and letters: frozen models, folded from accepted records.

**Consumes** records in order of offset; reads no topic itself. **Produces** models: `--json` prints their `dump()`,
`refold.client` returns them, the command line renders them, so that each thing has one shape. **Guarantees** the
planner's rule of acceptance (`core.run.log`). Pure: imports only `core`.
"""
