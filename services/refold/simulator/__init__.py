"""The simulator: the whole platform in one process, from one seed, on a virtual clock, with faults at every boundary.

Services are turns without I/O, so a simulated process carries their effects out one at a time, and each is a
*boundary*: a record written, a ledger operation, a commit, the start, the effect and the end of a tool. A fault strikes
at a boundary by number; the same case always has the same boundaries.

Where to look: `world` is time, processes and groups, `process` carries effects out, `faults` says what can go wrong,
`receiver` is the outside world that counts effects, `people` are asked and answer, `law` is what the operator
publishes, `scenarios` is what is asked of the platform, `history`, `approvals` and `tokens` read raw records in their
own way, `checker` says what was broken, `campaign` runs many cases, `byzantine` is a planner that lies, `bugs` are
planted to be caught.
"""
