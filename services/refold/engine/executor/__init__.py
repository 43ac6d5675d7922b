"""The tool-executor: claims a call, runs its tool, and puts the result into ledger and outbox in one step.

**Consumes** `tool-requested.<pool>` (its group), and by hand the same partitions of `tool-claimed.<pool>`. **Produces**
`tool-claimed.<pool>` for `probed` and `once` calls; results go through the outbox in the ledger, which the relay
empties. It does not touch other pools.

**Guarantees** No effect happens twice, by the declared class of its tool. A stored result reaches the planner. Unknown
outcomes are declared as doubt. A tool that hangs, blocks or dies holds up only its own slot.

**When it dies** its commands are read again up to the last claim, and its leases run out: the next owner of the
partitions takes the calls over, by class. **When it is a zombie** its claims are void, its tokens fenced, and it begins
no effect later than a margin before its lease ends; a result is then published as late.

`service` has the attempts of a process, `lane` one partition with waiting calls (`inputs`), claim chain and catalog.
`attempt` is one try of one call from claim to `outcome`, `chained` one with a claim chain, `gate` its permission to
run; the `outbox` sends for all of them. `engine.adapters.tools` runs the code.
"""
