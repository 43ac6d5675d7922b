"""The tables that Refold ships: runs, their steps, what people are asked, and sums by family and by day.

`tables` declares them, `steps` and `people` hold what events make of the rows of steps and questions, `projection` what
they make of the row of their run and of the sums. Arguments and results lie in `entries` alone; other tables have at
most `TEXT_CHARS` characters of free text.
"""
