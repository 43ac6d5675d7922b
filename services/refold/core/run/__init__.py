"""One run: the chain of its entries, the fold into its state, and the replay of its code."""
