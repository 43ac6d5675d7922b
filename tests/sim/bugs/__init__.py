"""Bugs planted on purpose: each has to be found, or the checkers are blind."""
