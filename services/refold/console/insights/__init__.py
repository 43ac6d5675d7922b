"""Insights: live figures and alerts, by Faust, that nothing depends on.

**Consumes** `run-log` as the group `refold-insights`, in batches. **Produces** `run-insight`: figures by minute,
failing tools, and loops. **Guarantees** that figures match the log: they are a projection in SQLite beside the position
of the log. Records before the position are dropped; skipped ones, and runs whose seq jumps, are read from the log.
**Fails** by ending: after a restart it continues at its position. Nothing imports this room.
"""
