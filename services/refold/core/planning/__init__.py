"""From an input to events, and from events to commands: the planner's decisions, without its I/O."""
