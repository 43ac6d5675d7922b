"""Output of commands: tables, lines and JSON of results."""
