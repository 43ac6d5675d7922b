"""From an input to events, and from events to commands: what the planner decides, without its I/O."""
