"""Read models of runs, questions, budgets and letters, folded from accepted records in order of offset.

`--json` prints, `refold.client` returns and pages render the same models. Pure: imports only `core`."""
