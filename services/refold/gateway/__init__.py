"""The gateway: an HTTP API over the views, for programs that do not speak Kafka.

**Consumes** the rows of the projection `refold`, and the planner's dead letters as they come. **Produces** inputs of
runs, and votes. It is stateless: any number may run, and any may be killed.

**Guarantees** Answers match the log. A write is a record in Kafka, and nothing else. A read that passes on
`Refold-After` of an answer, through any gateway, waits until the view has the write.

**Fails** by 503 with `Retry-After` while Kafka (writes) or the database (reads) is away. Streams continue after the
last id that a client has seen."""
