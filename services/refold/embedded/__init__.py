"""Real servers and services as OS processes, for `refold dev`, the demo and every test that kills something.

**Holds**: `jars` (Kafka, fetched and checked once), `kafka` and `valkey` (a server on a folder), `supervisor`
(named child processes, started again when they die), `stack` (all of it, as one developer's platform).

**Guarantees**: what was acknowledged is there again after a restart on the same folder, at the same
addresses; no process outlives the one that started it (on Linux, even if that one is killed with SIGKILL);
everything listens on the loopback interface only.

**Fails**: without network, until the jars were fetched once; loudly when a second stack is started on one
folder; where its packages are missing (they come with `refold[dev]`, so that a service's image has no Java).
"""
