"""Contracts between services and the world. Services are turns without I/O, `turn(inbox, now) -> effects`; a host
carries the effects out and puts the answers into the next inbox."""
