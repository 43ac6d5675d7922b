"""The contracts between services and the world. Services are turns without I/O: `turn(inbox, now) -> effects`. A host
carries the effects out, through an `EventLog` and a `Ledger`, and puts the answers into the next inbox. Production
hosts live in `runtime`, the simulator has its own; both are bound to these docstrings."""
