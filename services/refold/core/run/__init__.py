"""One run: chain of entries, fold into state, replay of code."""
