"""Frameworks of others on Refold, each an extra of the package. Nothing else of Refold knows of them."""
