"""One run: the chain that its entries form, the fold that makes its state, the replay that makes its steps again."""
