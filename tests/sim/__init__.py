"""The simulator in a slice: every promise under faults, and proof that its checker can fail."""
