"""A property test of the loop: random programs, recorded in one process and checked in another."""
