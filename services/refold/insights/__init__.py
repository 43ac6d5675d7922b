"""Insights: live figures and alerts that nothing rests on, by Faust.

**Consumes** `run-log` as the group `refold-insights`, in batches. **Produces** `run-insight`: figures by minute,
failing tools, and loops.

**Guarantees** Figures contain what the log contains: they are a projection, judged by the head of each run, in SQLite
beside the position of the log. Records before the position are dropped. At a start, and where Faust has
passed records by, they are read from the log; where the seq of a run jumps, that run is.

**Fails** by ending: started again, it goes on at its position. Nothing imports this room, and the platform is whole
without it.
"""
