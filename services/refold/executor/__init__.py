"""The tool-executor: claims a call, acts on it, and puts the result into ledger and outbox in one step.

**Consumes** `tool-requested.<pool>` (its group), and by hand the same partitions of `tool-claimed`. **Produces**
`tool-claimed` for `probed` and `once` calls; results go through the outbox in the ledger, which the relay empties.

**Guarantees** No effect happens twice, by the declared class of its tool. A result that was stored reaches the
planner. What cannot be known is declared as doubt, never guessed. A tool that hangs, blocks or dies holds up nothing
but its own slot.

**When it dies** its commands are read again up to the last claim, and its leases run out: whoever has the partitions
then takes the calls over, by class. **When it is a zombie** its claims are void, its tokens fenced, and it may not
begin an effect later than a margin before its lease ends; a result that it still has is published as late.

Where to look: `claims` is the claim chain as read from the topic, `job` is one claim of one call from command to
outcome, `service` feeds jobs and keeps leases, `toolbox` runs the tools' code.
"""
