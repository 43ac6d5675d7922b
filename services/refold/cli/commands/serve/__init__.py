"""`refold serve`: one service in this process. Time to start is time to recover: each module imports only its own
service, and opens the event log, whose producer needs 0.5 s, before it builds the service."""
