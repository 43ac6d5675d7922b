"""Real servers and services as OS processes, for `refold dev`, the demo and tests that kill processes.

**Holds**: `jars` (Kafka, fetched and checked once), `kafka` and `valkey` (a server on a folder), `supervisor` (named
child processes, restarted when they die), `stack` (one developer's whole platform).

**Guarantees**: acknowledged data is there again after a restart on the same folder, at the same addresses; no process
outlives its parent (on Linux, even one killed with SIGKILL); everything listens on the loopback interface only.

**Fails**: without network, until the jars were fetched once; loudly when a second stack is started on one folder;
without its packages (they come with `refold[dev]`, so that a service's image has no Java).
"""
