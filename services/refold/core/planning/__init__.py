"""The planner's decisions without its I/O: from an input to events, and from events to commands."""
