"""Refold and its peers on the same work, in one sitting: `python -m benchmarks --peers`."""
