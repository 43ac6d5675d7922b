"""The tool-executor: claims a call, acts on it, and puts the result into ledger and outbox in one step.

**Consumes** `tool-requested.<pool>` (its group), and by hand the same partitions of `tool-claimed.<pool>`. **Produces**
`tool-claimed.<pool>` for `probed` and `once` calls; results go through the outbox in the ledger, which the relay
empties. Nothing of another pool.

**Guarantees** No effect happens twice, by the declared class of its tool. A result that was stored reaches the
planner. What cannot be known is declared as doubt, never guessed. A tool that hangs, blocks or dies holds up nothing
but its own slot.

**When it dies** its commands are read again up to the last claim, and its leases run out: whoever has the partitions
then takes the calls over, by class. **When it is a zombie** its claims are void, its tokens fenced, and it may not
begin an effect later than a margin before its lease ends; a result that it still has is published as late.

Where to look: `service` has the attempts of a process, `lane` is one partition: what waits for a slot (`inputs`), the
claim chain as read from the topic (`claim_chain`), the catalog. `attempt` is one try of one call from claim to
`outcome`, `chained` one that asks the claim chain, `gate` says whether it may run, the `outbox` sends what all of them
want. `adapters.tools` runs the code.
"""
