"""Traces: spans that are folded from histories and exported by OTLP, a trace for each stretch of a run's work.

**Consumes** the entries that the views have accepted. **Produces** spans for a collector, at least once.

**Guarantees** Times are those of the log and ids are digests, so a span that is exported again is the same span, and no
replay makes one. Planners and executors do nothing for it. The span of an attempt is the one that its executor was
given as `traceparent`. **Fails** by standing still while the collector or the database is away.
"""
