"""Real servers and services as child processes, for `refold dev`, the demo and tests that kill processes.

**Guarantees**: acknowledged data and addresses survive a restart on the same folder; no process outlives its parent (on
Linux, even after SIGKILL); servers listen on loopback only.

**Fails** without network until the jars were downloaded, for a second stack on one folder, and without the packages of
`refold[dev]`.
"""
