"""Tables that Refold ships: runs, steps, questions to people, and sums by family and by day. Only `entries` contains
arguments and results."""
