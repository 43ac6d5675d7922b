"""Runs the tools' code for an executor."""
