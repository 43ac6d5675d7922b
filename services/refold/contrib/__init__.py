"""Frameworks on Refold, each an extra of the package. No other room imports this one."""
