"""Ledger in memory, under the same contract suite as the durable one."""
