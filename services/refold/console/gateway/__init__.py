"""The gateway: an HTTP API over the views, for programs that do not speak Kafka.

**Consumes** the rows of the projection `refold`, and the planner's dead letters. **Produces** inputs of runs, and
votes. Stateless: any number may run.

**Guarantees** Answers match the log. A write is one record in Kafka. A read with the `Refold-After` of an answer,
through any gateway, waits until the view has the write.

**Fails** by 503 with `Retry-After` while Kafka (writes) or the database (reads) is away. Streams continue after a
client's last id.
"""
