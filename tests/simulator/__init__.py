"""The simulator: the whole platform in one process, from one seed, on a virtual clock, with faults at every boundary.

Services are turns without I/O, so a simulated process carries their effects out one at a time, and each is a
*boundary*: a record written, a ledger operation, a commit, the start, the effect and the end of a tool. A fault strikes
at a boundary by number; the same case always has the same boundaries.

Where to look: `world` has time, processes in groups, faults, people who are asked, the operator's law, and tools that
act on a receiver; `workload` is what is asked of the platform; `reading` reads raw records in a way of its own;
`attacks` is a planner that lies; `programs` are agents that a seed makes up, and plain asyncio, which judges them.
`case` runs one story to its end, `checker` says what was broken in it, `campaign` runs many. Processes read by the
rules of `MemoryEventLog`, which a contract suite holds to what Kafka does. The bugs that are planted to prove the
checker are in `tests/sim/bugs`.
"""
