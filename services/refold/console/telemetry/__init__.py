"""Traces: spans folded from histories and exported by OTLP, one trace for each stretch of a run's work.

**Consumes** accepted entries of the views. **Produces** spans for a collector, at least once. **Guarantees** Times are
the log's and ids are digests, so a span exported twice is the same span. An attempt's span is the `traceparent` of its
executor. **Fails** by waiting while the collector or the database is away.
"""
