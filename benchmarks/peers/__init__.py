"""Refold and its peers on the same work, in one sitting: `refold bench --peers`."""
