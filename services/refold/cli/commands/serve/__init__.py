"""`refold serve`: one service in this process, until it is stopped.

The only place that combines rooms: a service, its adapters, its host. Each service is a separate module with no more
imports than it needs, because the time to start is time to recover; the event log is opened first, because its producer
needs half a second before it can write."""
