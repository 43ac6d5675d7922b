"""The gateway: an HTTP API over the views, for programs that do not speak Kafka.

**Consumes** the rows of the projection `refold`, and the planner's dead letters as they come. **Produces** inputs of
runs, and votes. It keeps nothing: any number of them may run, and any of them may be killed.

**Guarantees** What it answers is what the log contains. A write is a record in Kafka, and nothing else. `Refold-After`
of an answer, passed on to a read through any gateway, makes that read wait until the view has the write.

**Fails** by 503 with `Retry-After` while Kafka (writes) or the database (reads) is away. Streams go on from the last id
that a client has seen."""
