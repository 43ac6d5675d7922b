"""Log and ledger in memory: no mocks but full peers, bound to the same contract suite. The simulator runs on them."""
