"""Determinism of agent code: a scan at registration, a watch at run time."""
