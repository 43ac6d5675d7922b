"""Printed results of commands."""
