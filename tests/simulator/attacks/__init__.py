"""Liars on the platform's topics: what a hijacked planner, executor or producer may write."""
