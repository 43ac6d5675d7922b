"""Acceptance of entries by the log, commands of accepted entries, and sums of shared limits."""
