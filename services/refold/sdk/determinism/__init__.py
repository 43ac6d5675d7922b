"""Determinism of agent code: a scan when it is registered, a watch while it runs."""
