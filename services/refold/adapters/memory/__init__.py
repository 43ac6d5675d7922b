"""The ledger in memory: no mock but a full peer, bound to the same contract suite. The test kit runs on it."""
