"""What keeps agent code the same on every replay: a scan when it is registered, a watch while it runs."""
