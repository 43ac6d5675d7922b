"""Execution of tools' code for an executor."""
