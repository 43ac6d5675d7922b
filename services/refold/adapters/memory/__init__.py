"""Ledger and views in memory, under the same contract suites as the durable ones."""
