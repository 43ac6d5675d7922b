"""Tables that Refold ships: runs, steps, questions to people, and sums by family and by day. Arguments and results are
in `entries` alone; other tables have at most `TEXT_CHARS` characters of free text."""
