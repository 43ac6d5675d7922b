"""`refold serve`: one service in this process, until it is told to stop.

The one place where rooms are put together: a service, its adapters, its host. Each service is a module of its own that
imports what it needs and no more, because the time to start is time to recover; and the event log comes first, because
its producer needs half a second before it can write."""
