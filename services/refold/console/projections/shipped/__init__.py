"""Tables that Refold ships: runs, steps, questions, and sums. Only `entries` contains arguments and results."""
